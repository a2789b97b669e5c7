"""Parts of a step of GradientReducer: its buffers, the hooks of the optimizer, sparse gradients."""

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
from sirtaki.torch._optimizer.options import ReducerOptions
from sirtaki.torch._sparse_allreduce import sparse_allreduce_async

_SCALER_STEP = torch.amp.GradScaler.step.__code__


@dataclass
class StepBuffers:
    """Memory that the runtime uses in one step, by index of the parameter."""

    grads: list[Tensor | None]
    versions: list[int]
    #: Sent instead of the memory of the gradient: another layout, or zeros without a gradient.
    send_buffers: dict[int, Tensor]


class Deferred(Protocol):
    """Pending updates of the last step; see DeferredUpdates."""

    def before_backward(self) -> None:
        """Called when a backward begins: ends the step of the runtime."""

    def finish_updates(self) -> None:
        """Makes all updates."""

    def abandon(self) -> None:
        """Drops all updates."""


def unhooked_step(plain: Any) -> Callable[[Any], Any]:
    """Returns step() of a class without its hooks, which run once for all parts of a step."""
    step: Any = plain.step
    return step.__wrapped__ if getattr(step, "hooked", False) and hasattr(step, "__wrapped__") else step


def before_update(optimizer: Any) -> None:
    """Runs the hooks that precede step()."""
    for hook in chain(
        torch_optimizer._global_optimizer_pre_hooks.values(), optimizer._optimizer_step_pre_hooks.values()
    ):
        hook(optimizer, (optimizer,), {})


def after_update(optimizer: Any) -> None:
    """Runs the hooks that follow step()."""
    for hook in chain(
        optimizer._optimizer_step_post_hooks.values(), torch_optimizer._global_optimizer_post_hooks.values()
    ):
        hook(optimizer, (optimizer,), {})


def start_gather(param: Tensor, name: str, options: ReducerOptions) -> Callable[[], Tensor]:
    """Starts to gather a sparse gradient, or none, from all ranks; returns a function that waits for the total."""
    grad = param.grad
    if grad is None:
        no_rows = torch.empty((0, *param.shape[1:]), dtype=param.dtype, device=param.device)
        no_indices = torch.empty((1, 0), dtype=torch.int64, device=param.device)
        how: dict[str, Any] = {"dtype": param.dtype, "device": param.device, "check_invariants": True}
        grad = torch.sparse_coo_tensor(no_indices, no_rows, param.shape, **how)
    scale = options.prescale * options.postscale
    scaled = grad if scale == 1.0 else grad * scale
    return sparse_allreduce_async(scaled, f"{options.stream_name}.{name}", options.op, options.process_set)


def refuse_grad_scaler(why: str) -> None:
    """Raises UnsupportedError with `why` inside step() of a GradScaler."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _SCALER_STEP:
            raise errors.UnsupportedError(why)
        frame = frame.f_back
