"""DistributedOptimizer(op=Adasum): every rank makes its own step, and the changes of the parameters are combined.

A step includes the scaling and the momentum of the optimizer. Steps, not gradients, are therefore compared for
orthogonality. Method: Maleki et al., Scaling Distributed Training with Adaptive Summation, 2020.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from sirtaki import basics, errors
from sirtaki.errors import require
from sirtaki.local_updates import local_choice
from sirtaki.ops import ReduceOp
from sirtaki.process_sets import ProcessSet
from sirtaki.torch._adapter import torch_ops
from sirtaki.torch._optimizer.checkpoints import only_makes_state
from sirtaki.torch._optimizer.parameters import stream_names
from sirtaki.torch._optimizer.step import refuse_grad_scaler
from sirtaki.torch._optimizer.step_errors import SUPERSEDED
from sirtaki.torch._optimizer.survivors import survivors
from sirtaki.torch._optimizer_class import extend_class, own_methods, rebind_scheduler_step, user_methods
from sirtaki.torch._param_ownership import param_owners
from sirtaki.torch.compression import Compression, choice_of

_SCALER = (
    "GradScaler skips steps of one rank alone, and with op=Adasum ranks make their steps together; use autocast with "
    "bfloat16, which needs no scaler, or op=Average"
)
_CASTS = {None: Compression.none, "none": Compression.none, "fp16": Compression.fp16, "bf16": Compression.bf16}


def refuse_for_adasum(predivide: float, sync: str | None, local_updates: Any) -> None:
    """Refuses arguments that concern gradients, because Adasum combines steps.

    Raises:
        InvalidArgumentError: a gradient_predivide_factor other than 1.
        UnsupportedError: sync other than "step", or local updates.
    """
    require(predivide == 1.0, "gradient_predivide_factor needs op=Average")
    local = local_choice(local_updates, basics.option("local.updates")) is not None
    given = "sync" if sync not in (None, "step") else "local_updates" if local else None
    if given is not None:
        raise errors.UnsupportedError(f"{given}: with op=Adasum step() combines the changes of steps; leave it out")


def compressor_of(compression: Any) -> Any:
    """Returns the compressor of changes: a cast, or the program's own. The option compression.codec counts, too.

    Raises:
        UnsupportedError: another codec was chosen.
    """
    codec, own = choice_of(compression)
    if own is not None:
        return own
    text = basics.option("compression.rules") or basics.option("compression.codec") if codec is None else codec
    if text not in _CASTS:
        raise errors.UnsupportedError(
            f'compression is "{text}": with op=Adasum changes are sent uncompressed, as fp16, bf16, or by a compressor '
            'of your own; give one of these, or "none" if an option chose the codec'
        )
    return _CASTS[text]


class AdasumSteps:
    """Combines the steps of one optimizer. Used from the thread that steps."""

    def __init__(self, names: list[str], params: list[Tensor], compressor: Any, process_set: ProcessSet) -> None:
        self._names = {id(param): name for name, param in zip(names, params, strict=True)}
        self._compressor = compressor
        self.process_set = process_set
        self._ops = torch_ops.within(process_set)
        self._included = process_set.included()
        self._stem = stream_names.next(process_set)
        self._superseded = False
        self._params = params  # kept alive as long as the claim
        param_owners.claim(self, params)
        survivors.bound = True

    def supersede(self) -> None:
        """Implements Owner."""
        self._superseded = True

    def check_join(self) -> None:
        """Implements Owner. Nothing is in flight between steps."""

    def step(self, groups: list[dict[str, Any]], make: Callable[[], Any]) -> Any:
        """Runs `make`, then combines the changes it made to the parameters. Collective."""
        if self._superseded:
            raise RuntimeError(SUPERSEDED)
        if not self._included or self._ops.size() == 1:
            return make()
        refuse_grad_scaler(_SCALER)
        params = {
            self._names.get(id(param), f"group.{g}.{i}"): param
            for g, group in enumerate(groups)
            for i, param in enumerate(group["params"])
            if param.requires_grad
        }
        before = {name: param.detach().clone() for name, param in params.items()}
        result = make()
        try:
            changes = self._combine({name: param.detach() - before[name] for name, param in params.items()})
        except BaseException:
            with torch.no_grad():
                for name, param in params.items():
                    param.copy_(before[name])
            raise
        with torch.no_grad():
            for name, param in params.items():
                param.copy_(before[name].add_(changes[name]))
        return result

    def _combine(self, changes: dict[str, Tensor]) -> dict[str, Tensor]:
        packed = {name: self._compressor.compress(change) for name, change in changes.items()}
        work = [
            self._ops.allreduce(tensor, f"{self._stem}.{name}", ReduceOp.ADASUM, (1.0, 1.0), in_place=True)
            for name, (tensor, _) in packed.items()
        ]
        handles = self._ops.start(work) if work else []
        results = [handle.wait() for handle in handles]
        pairs = zip(packed.items(), results, strict=True)
        return {name: self._compressor.decompress(result, context) for (name, (_, context)), result in pairs}


class _Adasum:
    """Methods that DistributedOptimizer(op=Adasum) adds to the class of the user's optimizer."""

    _sirtaki_adasum: AdasumSteps

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes the step of this rank, then combines the changes of all ranks (collective).

        If combining fails, the parameters are restored; the state of the optimizer is not.
        """
        plain = user_methods(self).step
        if only_makes_state():
            return plain()
        groups = self.param_groups  # type: ignore[attr-defined]
        return self._sirtaki_adasum.step(groups, plain if closure is None else lambda: plain(closure))

    @property
    def committed(self) -> bool:
        """True: no step is void, because the loss of a rank is an error."""
        return True

    def synchronize(self) -> None:
        """Returns at once: gradients are local."""

    def wait(self) -> None:
        """Returns at once: step() waits."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Refused, because step() always combines."""
        raise errors.UnsupportedError("skip_synchronize(): with op=Adasum step() always combines the changes of steps")
        yield

    def no_sync(self) -> Any:
        """Returns an empty context: backward always accumulates on this rank alone."""
        return nullcontext()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Returns at once: any number of passes may precede a step."""
        del passes

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses copies, which would share the parameters."""
        del protocol
        raise errors.UnsupportedError("a DistributedOptimizer cannot be copied or pickled; save its state_dict()")

    def __del__(self) -> None:
        # Trainers copy the attributes of this object into objects of derived classes, which must not release the claim.
        if not sys.is_finalizing() and vars(self).get("_sirtaki_owner") == id(self):
            param_owners.release(self._sirtaki_adasum)


# Torch wraps step() of a class to run its hooks, unless the method is marked; the inner step() is wrapped already.
_Adasum.step.hooked = True  # type: ignore[attr-defined]
_METHODS = own_methods(_Adasum)


def make_adasum(
    optimizer: torch.optim.Optimizer, names: list[str], params: list[Tensor], compressor: Any, process_set: ProcessSet
) -> None:
    """Makes `optimizer` combine steps, in place."""
    extend_class(optimizer, _METHODS)
    optimizer._sirtaki_adasum = AdasumSteps(names, params, compressor, process_set)  # type: ignore[attr-defined]
    optimizer._sirtaki_owner = id(optimizer)  # type: ignore[attr-defined]
    rebind_scheduler_step(optimizer)
