"""LocalSgd: local updates of a DistributedOptimizer of torch."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from sirtaki import errors
from sirtaki._local_sgd import MAXIMUM, MEAN, VARIANCE, Buffer, LocalSgdBase, Outcome
from sirtaki.local_updates import LocalUpdates
from sirtaki.ops import Description
from sirtaki.process_sets import global_process_set
from sirtaki.torch._adapter import describe_memory
from sirtaki.torch._optimizer.host_copy import HostCopies
from sirtaki.torch._optimizer.options import ReducerOptions
from sirtaki.torch._optimizer.reducer import GradientReducer
from sirtaki.torch._optimizer.shards import local_of, memory_of, whole_of
from sirtaki.torch._profiling import profiled
from sirtaki.torch.functions import share_state
from sirtaki.torch.ops import Average, Max, Sum, allgather, allreduce, grouped_allreduce_

#: Key in state_dict() of an optimizer.
KEY = "sirtaki.local"
_NO_STATE = (
    "state_dict() has no state of local updates, because merges are in flight, and the model is that of this rank "
    "alone; a training that is resumed from it begins local updates anew. Call the optimizer's drain() on all ranks "
    "before it"
)


def check_local(optimizer: torch.optim.Optimizer, params: list[Tensor], options: ReducerOptions) -> None:
    """Refuses optimizers, parameters and options that local updates do not support. Raises UnsupportedError."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise errors.UnsupportedError(
            "local updates count steps, and LBFGS evaluates its closure several times a step; use local_updates=None"
        )
    if options.sync == "forward":
        raise errors.UnsupportedError(
            'local updates hide transfers behind whole steps, as sync="forward" does behind layers; leave sync out'
        )
    if not options.mean:
        raise errors.UnsupportedError("local updates average models, which does not match op=Sum; use op=Average")
    others = [p for p in params if p.dtype is not torch.float32 or p.device.type not in ("cpu", "cuda")]
    if others:
        raise errors.UnsupportedError(
            f"local updates merge float32 parameters on a CPU or a CUDA GPU, and one is {others[0].dtype} on "
            f"{others[0].device}; use local_updates=None, or autocast instead of a converted model"
        )


def shared_part(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a result of committed_state() that is of no rank: for a training with equal models."""
    return {"steps": state["steps"], "alone_steps": 0, "warm": state.get("warm", state.get("alone", False))}


class LocalSgd(LocalSgdBase):
    """Local updates of one optimizer; see LocalUpdates. Used from the thread that trains."""

    def __init__(self, optimizer: Any, reducer: GradientReducer, config: LocalUpdates, codec: str | None) -> None:
        keeps_moments = not isinstance(optimizer, torch.optim.SGD)
        options = reducer.options
        super().__init__(f"{reducer.stream_name}.local", config, codec, keeps_moments, options.process_set)
        self._options = options
        self._optimizer: Any = ref(optimizer)
        self._reducer = reducer
        self._restored: dict[str, Any] | None = None
        self._called: dict[int, tuple[nn.Module, bool]] = {}
        self._params = {id(whole_of(p)) for p in reducer.params}
        self._hook: Any = register_module_forward_pre_hook(self._before_call)
        #: Memory known to the runtime: a tensor over it, its name, and a function that finds the tensor again.
        self._memory: list[tuple[Tensor, str, Callable[[], Any]]] = []
        self._host_copies = HostCopies()
        self._waited = 0.0
        #: A row() of each rank, between meet() and end_meeting().
        self.rows: list[list[int]] = []
        #: state() has no value while merges are in flight, for programs that do not know of drain(); else it raises.
        self.may_lack_state = False

    # ---- what the optimizer calls ----

    def check_step(self, closure: Callable[[], Any] | None) -> None:
        """Refuses a step with a closure. Raises UnsupportedError."""
        if closure is not None:
            raise errors.UnsupportedError("local updates cannot run a closure; compute the loss and backward() first")

    def before_step(self) -> None:
        """Called before the update. Collective before the first one, when all ranks have the same model."""
        if self.starts:
            self._start()
        self._unhook()
        self._check_memory()

    @profiled("local_step")
    def after_step(self) -> None:
        """Called after the update."""
        if self._local is None:
            self._steps += 1
            return
        waited, self._waited = self._reducer.exposed_seconds - self._waited, self._reducer.exposed_seconds
        rates = [float(group["lr"]) for group in self._optimizer().param_groups if "lr" in group]
        self._step(max(rates, default=-1.0), round(waited * 1e9), self._host_copies.copy_to_host)

    @contextmanager
    def global_model(self) -> Iterator[None]:
        """Returns a context in which parameters are those that all ranks last agreed on. Not collective."""
        params = self._reducer.params
        if self._local is None or not self._reducer.alone:
            # Gradients are averaged, so the parameters are those of all ranks.
            yield
            return
        self._check_memory()
        own = [memory_of(p).clone() for p in params]
        try:
            for index, p in enumerate(params):
                if p.numel() > 0:
                    anchor = torch.empty_like(memory_of(p), device="cpu")
                    self._local.anchor(index, anchor.data_ptr(), p.numel())
                    memory_of(p).copy_(anchor)
            yield
        finally:
            with torch.no_grad():
                for p, kept in zip(params, own, strict=True):
                    memory_of(p).copy_(kept)

    def state(self) -> dict[str, Any] | None:
        """Returns the entry of state_dict(); None before the first step. Raises InvalidArgumentError during a merge."""
        if self._local is None:
            return self._restored
        try:
            saved = torch.frombuffer(bytearray(self._local.save()), dtype=torch.uint8)
        except errors.InvalidArgumentError:
            if not self.may_lack_state:
                raise
            warnings.warn(_NO_STATE, stacklevel=2)
            return None
        return {
            "rank": self._options.rank,
            "size": self._options.size,
            "steps": self._steps,
            "rounds": self._rounds,
            "affordable_rounds": self._affordable_rounds,
            "alone": self._reducer.alone,
            "saved": saved,
        }

    def committed_state(self) -> dict[str, Any]:
        """Returns what a commit of an elastic job keeps, also during merges: local updates begin anew behind a loss."""
        if self._restored is not None:
            return self._restored
        return {"steps": self._steps, "alone_steps": self._steps_since_drain, "warm": self._warm}

    def load(self, state: dict[str, Any] | None) -> None:
        """Loads a result of state() or committed_state() before the first step. The model is to be loaded, too."""
        if state is None:
            return
        if self._local is not None:
            raise RuntimeError("load_state_dict() after the first step of local updates; load before it")
        if "saved" not in state:
            self._restored = None
            self._steps, self._steps_since_drain = state["steps"], state["alone_steps"]
            self._warm = self._warm or state["warm"]
            return
        self._restored = state
        # The first backward pass precedes the first step.
        self._reducer.alone = state["alone"] and state["size"] == self._options.size

    def forget_loaded(self) -> None:
        """Begins the training anew: a state that was loaded before is not that of the model. Never raises."""
        self.abandon()
        self._restored = None
        self._steps, self._warm = 0, False
        self.models_equal()

    def close(self) -> None:
        """Ends merges in flight and removes the hook."""
        self._unhook()
        super().close()

    def abandon(self) -> None:
        """Gives up merges in flight, because the session ends: the next step begins anew. Never raises."""
        super().abandon()
        self._average_gradients(True)
        self._memory, self._host_copies = [], HostCopies()
        self.rows = []
        self._find_models_again()

    def _find_models_again(self) -> None:
        # On all ranks alike, or the order of buffers could be another one in a new rank.
        self._called.clear()
        if self._hook is None:
            self._hook = register_module_forward_pre_hook(self._before_call)

    # ---- equal models after a change of ranks: see elastic_models ----

    @property
    def of_all_ranks(self) -> bool:
        """True unless these are the local updates of a process set."""
        return self._options.process_set == global_process_set

    def parts_of(self, model: nn.Module) -> list[Tensor]:
        """Returns the memory of those parameters that `model` has."""
        of_model = {id(p) for p in model.parameters()}
        return [memory_of(p) for p in self._reducer.params if id(whole_of(p)) in of_model]

    @property
    def name(self) -> str:
        """The name, unique among the trainings of a program."""
        return self._name

    def is_of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns True if these are the local updates of `optimizer`."""
        return self._optimizer() is optimizer

    def row(self) -> list[int]:
        """Returns steps, those since the model was that of all ranks, and 1 if model and optimizer are finite."""
        finite = all(bool(torch.isfinite(memory_of(p)).all()) for p in self._reducer.params)
        finite = finite and all(_is_finite(state) for state in self._optimizer().state.values() if state)
        return [self._steps, self._steps_since_drain, int(finite)]

    def begin_meeting(self) -> None:
        """Begins local updates anew with the next step, as on a new rank."""
        if self.runs:
            self.abandon()
        else:
            self._find_models_again()

    def meet(self, rows: list[list[int]]) -> None:
        """Takes the rows of all ranks, until end_meeting()."""
        self.rows = rows

    def end_meeting(self) -> None:
        """Records that the ranks that have met have the same model: that of a training as old as the oldest."""
        rows, self.rows = self.rows, []
        if not rows:
            return
        steps = max(row[0] for row in rows)
        self.models_equal()
        self._steps = steps
        if steps > 0:
            self._restored = None  # a new rank has loaded the checkpoint, too, and the others have trained since

    # ---- inside ----

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _before_call(self, module: nn.Module, args: Any) -> None:
        """Finds the models by their calls: modules with some of the parameters, the outermost first."""
        del args
        if id(module) not in self._called:
            has_some = any(id(p) in self._params for p in module.parameters())
            self._called[id(module)] = (module, has_some)

    def _start(self) -> None:
        self._unhook()
        self._check_restored()
        super()._start()
        self._waited = self._reducer.exposed_seconds

    def _begin(self, local: Any) -> Outcome | None:
        restored = self._restored
        if restored is None or restored["size"] != self._options.size:
            if restored is not None and self._options.rank == 0:
                warnings.warn(
                    f"local updates were saved by {restored['size']} ranks and begin anew with {self._options.size}",
                    stacklevel=2,
                )
            return super()._begin(local)
        local.restore(bytes(restored["saved"].numpy().tobytes()))
        self._push()
        self._steps, self._rounds = restored["steps"], restored["rounds"]
        self._affordable_rounds = restored["affordable_rounds"]
        now = json.loads(local.stats_json())
        self._mode = (now["interval"], now["delay"], now["mode"] != "local")
        self._restored = None
        self._average_gradients(self._mode[2])
        return None

    def _check_restored(self) -> None:
        """Refuses checkpoints that only some ranks have, or that are of different steps. Collective."""
        restored = self._restored
        step = restored["steps"] if restored is not None and restored["size"] == self._options.size else -1
        mine = torch.tensor([[step, int(self._warm)]], dtype=torch.int64, device="cpu")
        rows = allgather(mine, f"{self._name}.checkpoint", self._ranks).tolist()
        self._warm = any(warm for _, warm in rows)  # in another epoch of an elastic job
        steps = [row[0] for row in rows]
        for rank, other in enumerate(steps):
            if other != steps[0]:
                has, begins = (f"one of step {step}" if step >= 0 else "none" for step in (other, steps[0]))
                raise errors.MismatchError(
                    f"rank {rank} was given {has} as checkpoint of local updates, and rank 0 {begins}; "
                    "call load_state_dict() on all ranks, with checkpoints that all ranks saved after one drain()"
                )

    def _parameters(self) -> list[tuple[str, Description]]:
        names, params = self._reducer.names, self._reducer.params
        self._memory = [(memory_of(p), name, partial(memory_of, p)) for name, p in zip(names, params, strict=True)]
        self._host_copies = HostCopies()
        return [(name, _described(self._host_copies.add(memory_of(p)))) for name, p in zip(names, params, strict=True)]

    def _buffers(self) -> list[Buffer]:
        """Returns the buffers of the models, in the order of their modules; a shared buffer once."""
        out: list[Buffer] = []
        seen: set[int] = set()
        models = [module for module, has_some in self._called.values() if has_some]
        self._called.clear()
        modules = dict.fromkeys(module for model in models for module in model.modules())
        for number, module in enumerate(modules if self._config.buffers == "average" else ()):
            places: dict[str, int] = {}
            for name, buffer in module.named_buffers(recurse=False):
                if id(buffer) in seen or buffer.dtype not in (torch.float32, torch.float64, torch.int64):
                    continue
                if buffer.is_floating_point() and not torch.isfinite(buffer).all():
                    continue  # a constant, such as a mask
                seen.add(id(buffer))
                self._memory.append((buffer.detach(), name, partial(getattr, module, name, None)))
                places[name] = len(out)
                paired = name == "running_var" and "running_mean" in places
                rule = VARIANCE if paired else MEAN if buffer.is_floating_point() else MAXIMUM
                mean = places["running_mean"] if paired else -1
                out.append((f"{number}.{name}", _described(self._host_copies.add(buffer)), rule, mean))
        return out

    def _check_memory(self) -> None:
        """Refuses tensors that have moved since the runtime learned their address. Raises RuntimeError."""
        for kept, name, find in self._memory:
            now = find()
            if now is None or now.data_ptr() != kept.data_ptr():
                raise RuntimeError(
                    f"the memory of {name} was replaced after the first step, and local updates merge it where it was; "
                    "convert, move or replace parameters and buffers before the first step, and change them in place "
                    "(copy_()) afterwards"
                )

    def _pull(self) -> None:
        self._check_memory()
        self._host_copies.copy_to_host()

    def _push(self) -> None:
        self._host_copies.copy_to_device()

    def _params_version(self) -> Any:
        return sum(memory_of(p)._version for p in self._reducer.params)

    def _average_gradients(self, wanted: bool) -> None:
        self._reducer.alone = not wanted

    def _receive_state(self, donor: int, mine_is_void: bool) -> None:
        root = self._ranks.ranks[donor]
        share_state(self._optimizer(), root, f"{self._name}.state", takes=mine_is_void, process_set=self._ranks)

    def _reset_state(self) -> None:
        self._optimizer().state.clear()

    def _largest(self, value: float) -> float:
        mine = torch.tensor([value], dtype=torch.float64, device="cpu")
        return float(allreduce(mine, name=f"{self._name}.largest", op=Max, process_set=self._ranks))

    def _average_state(self) -> None:
        """Averages the state of the optimizer: mean of tensors, maximum of counts and factors. Collective.

        The state of a parameter is dropped if some ranks have none, or one that is not finite.
        """
        state, params = self._optimizer().state, [whole_of(p) for p in self._reducer.params]
        known = torch.tensor([float(_is_finite(state.get(p, {}))) for p in params], dtype=torch.float32, device="cpu")
        known = allreduce(known, name=f"{self._name}.known", op=Sum, process_set=self._ranks)
        tensors: list[Tensor] = []
        numbers: list[tuple[dict[str, Any], str]] = []
        for p, ranks in zip(params, known.tolist(), strict=True):
            if ranks < self._options.size:
                state.pop(p, None)
            of_param = state.get(p, {})
            for key, value in sorted((key, local_of(value)) for key, value in of_param.items()):
                if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()) and value.dim() > 0:
                    tensors.append(value)
                elif _is_number(value):
                    numbers.append((of_param, key))
                elif isinstance(value, (list, tuple, dict)) and len(value) > 0:
                    raise errors.UnsupportedError(
                        f"the state {key} of a parameter is a {type(value).__name__}; local updates average tensors "
                        "and numbers; keep each tensor under a key of its own, or use local_updates=None"
                    )
        if tensors:
            grouped_allreduce_(tensors, name=f"{self._name}.average", op=Average, process_set=self._ranks)
        if numbers:
            values = [float(of_param[key]) for of_param, key in numbers]
            most = torch.tensor(values, dtype=torch.float64, device="cpu")
            most = allreduce(most, name=f"{self._name}.numbers", op=Max, process_set=self._ranks)
            for (of_param, key), value in zip(numbers, most.tolist(), strict=True):
                mine = of_param[key]
                of_param[key] = mine.fill_(value) if isinstance(mine, Tensor) else type(mine)(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() == 0
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(state: dict[str, Any]) -> bool:
    """Returns True if there is state, and all of it is finite."""
    tensors = [local_of(value) for value in state.values() if isinstance(value, Tensor)]
    return bool(state) and all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _described(memory: Tensor) -> Description:
    return describe_memory(memory.dtype, memory.device, memory.shape, memory.stride(), memory.data_ptr())
