"""sync="forward": step() returns at once, and a module's parameters are updated when it is called, or they are read.

The update is made by the user's own optimizer, whose groups are narrowed for it to the parameters in question, with the
options they had when step() was called. So any optimizer works that treats each parameter by itself. Gradients,
and the memory that travels, are kept here until the runtime is done with them, whatever the program does to `.grad`.

Used from the thread that runs forward and backward; a lock covers a second one that runs a forward pass.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sirtaki import errors
from sirtaki.torch import _module_hooks
from sirtaki.torch._optimizer.reducer import GradientReducer
from sirtaki.torch._optimizer.step import (
    SCALER_TOO_EARLY,
    StepMemory,
    after_update,
    before_update,
    refuse_grad_scaler,
    unhooked_step,
)

#: torch's optimizers that treat each parameter by itself: all but LBFGS.
_SEPARATE = {
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
}
_INSTEAD = 'use sync="backward"'


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuses optimizers that cannot be applied to one layer at a time. Raises UnsupportedError."""
    plain = type(optimizer)
    if not is_separate(plain) and not getattr(optimizer, "forward_safe", False):
        raise errors.UnsupportedError(
            f'sync="forward" updates one layer at a time, and {plain.__name__} may couple parameters of several '
            f"layers; {_INSTEAD}. If it treats each parameter by itself, set forward_safe = True on it"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise errors.UnsupportedError(f'sync="forward" cannot differentiate through step(); {_INSTEAD}')


def is_separate(plain: type[Optimizer]) -> bool:
    """True of a class of torch's that treats each parameter by itself: it runs a closure once, for its gradients."""
    maker = _maker_of_step(plain)
    return f"{maker.__module__}.".startswith("torch.optim.") and maker.__name__ in _SEPARATE


def _maker_of_step(plain: type[Optimizer]) -> type:
    """The class that defines step(). Torch gives a derived class its base's, with hooks, where it is made first."""
    step = unhooked_step(plain)
    return [c for c in plain.__mro__ if "step" in vars(c) and unhooked_step(c) is step][-1]


def _frozen(value: Any) -> Any:
    """An option of a group as it is now; schedulers change tensors in place."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, tuple) and any(isinstance(v, Tensor) for v in value):
        return tuple(_frozen(v) for v in value)
    return value


def _as_outside_forward(update: Callable[[Any], Any], optimizer: Optimizer) -> None:
    """Runs `update` as step() would have, whatever mode the forward pass is in."""
    inference, autocast = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    if not inference and not autocast:
        update(optimizer)
        return
    with ExitStack() as modes:
        if inference:
            modes.enter_context(torch.inference_mode(mode=False))
        if autocast:
            modes.enter_context(torch.autocast("cpu", enabled=False))
        update(optimizer)


def _alone(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method during which no other thread uses the updates."""

    @functools.wraps(method)
    def alone(self: DeferredUpdates, *args: Any) -> Any:
        with self._lock:
            return method(self, *args)

    return alone


class DeferredUpdates:
    """The updates of one optimizer that step() has left to the next forward pass. Does not keep the optimizer alive."""

    def __init__(
        self,
        optimizer: Optimizer,
        plain: type[Optimizer],
        reducer: GradientReducer,
        update: Callable[[Any], Any] | None = None,
    ) -> None:
        self._optimizer: Callable[[], Any] = weakref.ref(optimizer)
        self._plain_zero_grad: Any = plain.zero_grad
        self._update = unhooked_step(plain) if update is None else update
        self._reducer = reducer
        self._index = {id(p): i for i, p in enumerate(reducer.params)}
        self._calls = _module_hooks.CallMap(reducer.params)
        self._lock = RLock()
        self._learning = True
        #: Updates still to be made: a parameter's index in the reducer, by its id. For reading.
        self.waiting: dict[int, int] = {}
        self._updating: set[int] = set()  # of those that wait
        self._open = False  # the runtime's step is not ended yet
        self._memory = StepMemory([], [], {})
        self._groups: list[dict[str, Any]] = []  # the options as they were in step()
        self._group_of: dict[int, int] = {}
        self._weights: list[int] = []  # versions of the parameters
        self._clear = ""  # what zero_grad() has asked for: "none" or "zero"
        self._last: Callable[[], None] | None = None  # see let_go()
        _module_hooks.listen(self)
        reducer.deferred = self

    def let_go(self, optimizer: Optimizer, last: Callable[[], None]) -> None:
        """Nobody has the optimizer any more: calls `last` when its updates are made. Never waits.

        Updates that are pending keep the optimizer alive, and are made when any module is called or one of the
        parameters is read.
        """
        self._reducer.unhook()
        # Weak references to it may be dead already.
        self._optimizer = lambda: optimizer
        self._last = last
        self._end_if_done()

    @_alone
    def _end_if_done(self) -> None:
        if self._last is not None and not self.waiting and not self._open:
            last, self._last = self._last, None
            _module_hooks.ignore(self)
            self._drop()
            last()

    @property
    def pending(self) -> bool:
        """True while parameters wait for their update."""
        return bool(self.waiting)

    def add(self, param: Tensor) -> None:
        """One more parameter, the reducer's last."""
        self._index[id(param)] = len(self._index)
        self._calls.add(param)

    # ---- step and zero_grad of the optimizer ----

    @_alone
    def step(self, skip_synchronize: bool) -> None:
        """Hands the step over to the runtime and leaves the updates to the next forward pass, where it can."""
        optimizer = self._optimizer()
        self.complete()
        self._learning = False
        if self._reducer.in_flight:
            if skip_synchronize:
                raise RuntimeError("step() inside skip_synchronize() needs a synchronize() before it")
            refuse_grad_scaler(SCALER_TOO_EARLY)
        before_update(optimizer)
        memory = None if skip_synchronize else self._reducer.defer()
        if memory is None:
            _as_outside_forward(self._update, optimizer)
            self._reducer.stepped()
            after_update(optimizer)
        else:
            self._begin(optimizer, memory)

    @_alone
    def zero_grad(self, set_to_none: bool) -> None:
        """Clears gradients that are applied; the others are cleared as soon as they are."""
        optimizer = self._optimizer()
        self._clear = "none" if set_to_none else "zero"
        groups = optimizer.param_groups
        optimizer.param_groups = [
            {**group, "params": [p for p in group["params"] if id(p) not in self.waiting]} for group in groups
        ]
        try:
            self._plain_zero_grad(optimizer, set_to_none)
        finally:
            optimizer.param_groups = groups

    # ---- moments at which updates are made ----

    def before_call(self, module: nn.Module) -> None:
        """A module's forward() is about to use its parameters."""
        if self._last is not None:
            self._complete_all()
            return
        if not self.waiting:
            if self._learning:
                self._calls.note(module)
            return
        self._update_for(module)

    @_alone
    def _update_for(self, module: nn.Module) -> None:
        # In these cases modules beneath may be used without being called.
        opaque = not module.training and not torch.is_grad_enabled()
        if opaque or isinstance(module, torch.jit.ScriptModule) or "_orig_mod" in module._modules:
            self._calls.note(module)
            ids = self._calls.all_of(module)
        else:
            beneath = self._calls.beneath(module)
            ids = [id(p) for p in module._parameters.values()]
            # One without a gradient is hardly used at all; nobody should wait for it now.
            ids += [key for key in beneath if key in self.waiting and self._memory.grads[self.waiting[key]] is not None]
        self._complete_these(ids)

    @_alone
    def before_read(self, ids: Iterable[int]) -> None:
        """The program is about to have these parameters in its hands."""
        self._complete_these(ids)

    def _complete_these(self, ids: Iterable[int]) -> None:
        # Tied weights come several times.
        self._complete(dict.fromkeys(self.waiting[key] for key in ids if key in self.waiting))

    @_alone
    def before_backward(self) -> None:
        """Ends the runtime's step, so that gradients of the next can be handed over."""
        if self._open:
            self._end()
        if self.waiting:
            used = self._reducer.used()
            for index in self.waiting.values():
                if used[index]:
                    self._reducer.mark_stale(index)

    def complete(self) -> None:
        """Waits for all gradients and makes all updates."""
        if self.waiting or self._open:
            self._complete_all()

    @_alone
    def _complete_all(self) -> None:
        if self._open:
            self._end()
        self._complete(self.waiting.values())
        self._end_if_done()

    # ---- one step ----

    def _begin(self, optimizer: Any, memory: StepMemory) -> None:
        groups = optimizer.param_groups
        self._memory, self._open, self._clear = memory, True, ""
        self._groups = [{k: _frozen(v) for k, v in group.items() if k != "params"} for group in groups]
        self._group_of = {id(p): g for g, group in enumerate(groups) for p in group["params"]}
        self.waiting = {key: index for key, index in self._index.items() if key in self._group_of}
        self._weights = [p._version for p in self._reducer.params]
        covered = self._calls.covered()
        if not covered.issuperset(self.waiting):
            gradients = memory.grads
            now = [i for key, i in self.waiting.items() if key not in covered and gradients[i] is not None]
            self._complete(now)

    def _end(self) -> None:
        if self._guarded(self._reducer.end_deferred):
            self._open = False

    def _guarded(self, wait: Callable[[], None]) -> bool:
        """A step that failed is void; an interrupted wait can be repeated. False: the step is left out."""
        try:
            wait()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            skipped = self._reducer.skips(error)
            if skipped:
                self._leave_out()
            self._drop()
            self._end_if_done()
            if not skipped:
                raise
            return False
        return True

    def _leave_out(self) -> None:
        """Clears the gradients of a step that is not applied, unless the program has new ones."""
        for param, grad in zip(self._reducer.params, self._memory.grads, strict=True):
            if grad is not None and param.grad is grad:
                param.grad = None

    def _complete(self, indices: Iterable[int]) -> None:
        indices = [i for i in indices if i not in self._updating]
        if not indices:
            return
        params = self._reducer.params
        if self._open and not self._guarded(lambda: self._reducer.fetch(indices)):
            return
        results = self._results(indices)
        # They wait until they are updated, for other threads; what an update itself reads does not.
        self._updating.update(indices)
        try:
            self._apply(indices, results)
        finally:
            self._updating.difference_update(indices)
            for i in indices:
                self.waiting.pop(id(params[i]), None)
        if not self.waiting:
            after_update(self._optimizer())
            if self._last is not None and self._open:
                self._end()
            self._end_if_done()

    def _results(self, indices: Sequence[int]) -> list[Tensor | None]:
        memory = self._memory
        used: list[bool] | None = None
        results: list[Tensor | None] = []
        for i in indices:
            grad, wire = memory.grads[i], memory.wires.get(i)
            if self._reducer.params[i]._version != self._weights[i]:
                self._refuse(i, "")
            if grad is None:
                used = self._reducer.used() if used is None else used
                results.append(wire if used[i] else None)
                continue
            if grad._version != memory.versions[i]:
                self._refuse(i, "the gradient of ")
            if wire is not None:
                grad.copy_(wire)
            results.append(grad)
        return results

    def _refuse(self, index: int, what: str) -> None:
        self.abandon()
        raise RuntimeError(
            f"{what}{self._reducer.names[index]} was changed after step(), before its update; call wait() before such "
            f"changes, clear gradients with the optimizer's zero_grad(), or {_INSTEAD}. The updates that were still to "
            "be made are lost"
        )

    def _apply(self, indices: Sequence[int], results: Sequence[Tensor | None]) -> None:
        optimizer, memory = self._optimizer(), self._memory
        params = [self._reducer.params[i] for i in indices]
        theirs = [p.grad for p in params]  # what the program sees as the gradient
        for p, grad in zip(params, results, strict=True):
            p.grad = grad
        try:
            self._apply_to(optimizer, params)
        finally:
            for i, p, grad, seen in zip(indices, params, results, theirs, strict=True):
                if seen is not memory.grads[i]:
                    p.grad = seen
                elif self._clear == "none":
                    p.grad = None
                elif self._clear == "zero" and grad is not None:
                    grad.zero_()
                memory.grads[i] = None

    def _apply_to(self, optimizer: Any, params: Sequence[Tensor]) -> None:
        by_group: dict[int, list[Tensor]] = {}
        for p in params:
            by_group.setdefault(self._group_of[id(p)], []).append(p)
        groups = optimizer.param_groups
        narrowed = [{**self._groups[g], "params": some} for g, some in by_group.items()]
        optimizer.param_groups = narrowed
        try:
            _as_outside_forward(self._update, optimizer)
        finally:
            optimizer.param_groups = groups
        for g, group in zip(by_group, narrowed, strict=True):
            self._check_options(optimizer, self._groups[g], group)

    def _check_options(self, optimizer: Any, before: dict[str, Any], after: dict[str, Any]) -> None:
        """An optimizer that keeps something in its groups would do so once for each layer."""
        written = [key for key, value in after.items() if key != "params" and before.get(key, after) is not value]
        if written:
            self.abandon()
            raise errors.UnsupportedError(
                f"{type(optimizer).__name__} writes '{written[0]}' into its parameter groups while it updates, and "
                f'sync="forward" runs it once for each layer; {_INSTEAD}, or keep it in state[p]'
            )

    @_alone
    def abandon(self) -> None:
        """Forgets the updates still to be made."""
        if self._open:
            self._end()
        self._drop()

    def _drop(self) -> None:
        self.waiting = {}
        self._open = False
        self._memory = StepMemory([], [], {})
