"""Momentum correction: the codec keeps the momentum of compressed tensors, the optimizer that of all others.

With `momentum` a codec selects among steps of SGD, not among gradients (Lin et al., Deep Gradient Compression, 2018).
The result for such a tensor is a step, to which SGD must not add momentum. The momentum of SGD, which must have the
same factor, stays on for uncompressed tensors and for weight decay. SGD with momentum is linear, so it runs twice:
unchanged, with zeros instead of the steps, and without momentum and weight decay, with the steps alone. Without
compressed tensors this is plain SGD, bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sirtaki import errors
from sirtaki.torch.compression import parts_of

_NO_MOMENTUM = {"momentum": 0.0, "nesterov": False, "dampening": 0.0, "weight_decay": 0.0}
#: Factors are sent in units of 1/65536.
_ROUNDING = 1e-4


class MomentumCorrection:
    """Momentum correction of one optimizer. Used from the thread that steps."""

    def __init__(self, text: str, factor: float, nesterov: bool) -> None:
        self._text, self._factor, self._nesterov = text, factor, nesterov
        #: Returns ids of the parameters whose gradients are steps, in the current step of the program.
        self.momentum_corrected: Callable[[], set[int]] = set

    def check(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Requires SGD with the momentum of the codec. Raises InvalidArgumentError for all others, and None."""
        if optimizer is None:
            raise errors.InvalidArgumentError(
                f'compression "{self._text}" corrects the momentum of an optimizer, and none is given: give it to '
                "accelerate(), or leave momentum out of the compression"
            )
        name = type(optimizer).__name__
        if not isinstance(optimizer, torch.optim.SGD):
            raise errors.InvalidArgumentError(
                f'compression "{self._text}" corrects the momentum of SGD, and the optimizer is {name}: leave momentum '
                "out of the compression, or use torch.optim.SGD"
            )
        for number, group in enumerate(optimizer.param_groups):
            self._check_group(f"group {number} of {name}", group)

    def _check_group(self, name: str, group: dict[str, Any]) -> None:
        what = f'compression "{self._text}" corrects a momentum of {self._factor:g}'
        if abs(group["momentum"] - self._factor) > _ROUNDING:
            raise errors.InvalidArgumentError(
                f"{what}, and {name} has {group['momentum']:g}: give both the same, and do not change it while "
                "training. The momentum of the optimizer applies to uncompressed tensors"
            )
        if group["nesterov"] != self._nesterov:
            is_on = "nesterov=on" if self._nesterov else "nesterov=off"
            raise errors.InvalidArgumentError(
                f"{what} with {is_on}, and {name} has nesterov={group['nesterov']}: give both the same"
            )
        if group["dampening"] != 0:
            raise errors.InvalidArgumentError(
                f"{what}, and {name} has dampening={group['dampening']:g}, which no codec supports: use dampening=0, "
                f"with a learning rate smaller by {1 - group['dampening']:g}"
            )

    def wrap(self, update: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wraps `update`, the step() of the optimizer without hooks, for gradients of which some are steps."""

        def corrected_update(optimizer: Any) -> None:
            groups = optimizer.param_groups
            ids = self.momentum_corrected()
            steps = [self._steps_of(group, ids) for group in groups]
            params = [p for group in steps for p in group["params"]]
            if not params:
                update(optimizer)
                return
            self.check(optimizer)
            grads = [p.grad for p in params]
            try:
                for group, of_steps in zip(groups, steps, strict=True):
                    for p in of_steps["params"]:
                        p.grad = _grad_without_step(optimizer, group, p)
                update(optimizer)
                _set_grads(params, grads)
                optimizer.param_groups = steps
                update(optimizer)
            finally:
                optimizer.param_groups = groups
                _set_grads(params, grads)

        return corrected_update

    @staticmethod
    def _steps_of(group: dict[str, Any], ids: set[int]) -> dict[str, Any]:
        """Returns the group with those parameters whose gradients are steps, without momentum."""
        return {**group, **_NO_MOMENTUM, "params": [p for p in group["params"] if id(p) in ids and p.grad is not None]}


def _set_grads(params: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
    for p, grad in zip(params, grads, strict=True):
        p.grad = grad


def _grad_without_step(optimizer: Any, group: dict[str, Any], param: Tensor) -> Tensor | None:
    """Returns the gradient with which SGD applies weight decay and keeps old momentum; None without either."""
    moves = optimizer.state.get(param, {}).get("momentum_buffer") is not None
    return torch.zeros_like(param) if moves or group["weight_decay"] != 0 else None


def correction_of(text: str) -> MomentumCorrection | None:
    """Returns the correction that a choice of compression asks for; None if no codec corrects momentum.

    Raises:
        InvalidArgumentError: the rules of the choice ask for different momenta.
    """
    wanted: set[tuple[float, bool]] = set()
    for rule in text.split(";"):
        _, settings = parts_of(rule)
        factor = _parse_factor(settings.get("momentum", "0"))
        if factor != 0:
            wanted.add((factor, settings.get("nesterov", "off").lower() in ("on", "true", "yes", "1")))
    if len(wanted) > 1:
        raise errors.InvalidArgumentError(
            f'compression "{text}" corrects momenta of {" and ".join(f"{f:g}" for f, _ in sorted(wanted))}, and an '
            "optimizer has one: give all rules the same momentum and nesterov"
        )
    return MomentumCorrection(text, *wanted.pop()) if wanted else None


def _parse_factor(text: str) -> float:
    """Parses a factor as the runtime does; 0 for a text that the runtime refuses."""
    well_formed = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)(%?)", text)
    return 0.0 if well_formed is None else float(well_formed[1]) / (100 if well_formed[2] else 1)
