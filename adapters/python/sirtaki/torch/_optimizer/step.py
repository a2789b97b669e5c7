"""What a step of GradientReducer consists of, and the texts of what can go wrong in it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from sirtaki import errors
from sirtaki.torch._optimizer.gradient_layout import ReducerOptions
from sirtaki.torch._sparse_allreduce import sparse_allreduce_async

_SCALER_STEP = torch.amp.GradScaler.step.__code__


@dataclass
class StepBuffers:
    """What the runtime works on in one step, by index of the parameters."""

    grads: list[Tensor | None]
    versions: list[int]
    #: Memory that travels instead of the gradient's own: another layout, or zeros where there is no gradient.
    send_buffers: dict[int, Tensor]


class Deferred(Protocol):
    """Updates of the last step that are still to be made; see DeferredUpdates."""

    def before_backward(self) -> None:
        """A backward begins: ends the runtime's step."""

    def finish_updates(self) -> None:
        """Makes all of them."""

    def abandon(self) -> None:
        """Makes none of them."""


def unhooked_step(plain: Any) -> Callable[[Any], Any]:
    """step() of a class of optimizers without the hooks of step, which are run once for all parts of a step."""
    step: Any = plain.step
    return step.__wrapped__ if getattr(step, "hooked", False) and hasattr(step, "__wrapped__") else step


def before_update(optimizer: Any) -> None:
    """Runs the hooks before step()."""
    for hook in chain(
        torch_optimizer._global_optimizer_pre_hooks.values(), optimizer._optimizer_step_pre_hooks.values()
    ):
        hook(optimizer, (optimizer,), {})


def after_update(optimizer: Any) -> None:
    """Runs the hooks after step()."""
    for hook in chain(
        optimizer._optimizer_step_post_hooks.values(), torch_optimizer._global_optimizer_post_hooks.values()
    ):
        hook(optimizer, (optimizer,), {})


def start_gather(param: Tensor, name: str, options: ReducerOptions) -> Callable[[], Tensor]:
    """Begins to gather a sparse gradient, or none, from all ranks; the result of the call it returns is the total."""
    grad = param.grad
    if grad is None:
        no_rows = torch.empty((0, *param.shape[1:]), dtype=param.dtype, device=param.device)
        no_indices = torch.empty((1, 0), dtype=torch.int64, device=param.device)
        how = {"dtype": param.dtype, "device": param.device, "check_invariants": True}
        grad = torch.sparse_coo_tensor(no_indices, no_rows, param.shape, **how)
    scale = options.prescale * options.postscale
    scaled = grad if scale == 1.0 else grad * scale
    return sparse_allreduce_async(scaled, f"{options.stream_name}.{name}", options.op, options.process_set)


def refuse_grad_scaler(why: str) -> None:
    """Inside the step() of a GradScaler."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _SCALER_STEP:
            raise errors.UnsupportedError(why)
        frame = frame.f_back
