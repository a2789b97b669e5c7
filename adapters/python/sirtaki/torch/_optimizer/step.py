"""What a step of GradientReducer consists of, and the texts of what can go wrong in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from sirtaki import basics, errors
from sirtaki.torch._optimizer.gradient_layout import ReducerOptions
from sirtaki.torch._sparse_allreduce import sparse_allreduce_async

_SCALER_STEP = torch.amp.GradScaler.step.__code__

#: An optimizer that is used although another one has its parameters.
SUPERSEDED = (
    "a DistributedOptimizer made later has parameters of this one and combines their gradients; give all parameters to "
    "one optimizer, in groups if need be, and use the optimizer made last"
)


@dataclass
class StepMemory:
    """What the runtime works on in one step, by index of the parameters."""

    grads: list[Tensor | None]
    versions: list[int]
    #: Memory that travels instead of the gradient's own: another layout, or zeros where there is no gradient.
    wires: dict[int, Tensor]


class Deferred(Protocol):
    """Updates of the last step that are still to be made; see DeferredUpdates."""

    def before_backward(self) -> None:
        """A backward begins: ends the runtime's step."""

    def complete(self) -> None:
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


def too_often(name: str, passes: int) -> str:
    """A second gradient in one step."""
    return (
        f"the gradient of {name} was computed more than backward_passes_per_step ({passes}) times before step(); raise "
        "backward_passes_per_step, or run the extra passes inside no_sync(), to accumulate. After a backward() that "
        "failed, call zero_grad() first"
    )


def late(name: str) -> str:
    """A backward that ends before gradients are combined."""
    return (
        f"backward() ends without the combined gradients of {name} and the other parameters of its optimizer, because "
        "not every rank's backward reaches them; step() waits for them, from now on. Call the optimizer's "
        "synchronize() before clipping and other changes of gradients"
    )


def unequal(name: str, count: int, total: int) -> str:
    """Parameters that are not the same on all ranks in the first step."""
    return (
        f"{name} is not the same on all ranks in the first step ({count} of {total} parameters differ), so the ranks "
        "train different models; call broadcast_parameters(model.state_dict(), root_rank=0) before it, after each load "
        "of a checkpoint. The option torch.unequal_models makes this an error, or gives all ranks rank 0's parameters"
    )


def join_too_early(rank: int) -> str:
    """A join() before the step() of a backward."""
    return (
        f"join() came in the middle of a step on rank {rank}: gradients were computed and not used. Call the "
        "optimizer's step() first"
    )


def stale(name: str) -> str:
    """A gradient of a parameter whose last update is still to be made."""
    return (
        f'{name} was used in the forward pass before its update: with sync="forward" a parameter is updated when its '
        "module, or one above that, is called, or it is read as an attribute of its module. Call wait() before code "
        'that uses parameters in other ways, or use sync="backward". The updates that were still to be made are lost'
    )


def stray(groups: Sequence[dict[str, Any]], param: Tensor) -> str:
    """A gradient that would be applied without being combined."""
    places = [(g, i) for g, group in enumerate(groups) for i, p in enumerate(group["params"]) if p is param]
    group, place = places[0]
    return (
        f"parameter {place} of group {group} has a gradient that is not combined over the ranks: the parameter was not "
        "in the optimizer, or did not require a gradient, when DistributedOptimizer was called. Add parameters with "
        "add_param_group(); unfreeze them before the call, and freeze them again after it"
    )


Kind = tuple[torch.Size, torch.dtype, torch.device]


def changed(name: str, before: Kind, now: Kind) -> str:
    """A parameter that is not what the ranks have agreed on."""

    def text(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> str:
        where = "" if before[2] == now[2] else f" on {device}"
        return f"{dtype} {list(shape)}{where}".removeprefix("torch.")

    return (
        f"{name} is {text(*now)} on rank {basics.rank()} and was {text(*before)} in the first step, when the ranks "
        "agreed on what to send; convert, move or resize a model before its first step, or make a new optimizer for it"
    )


def edited(name: str) -> str:
    """A gradient changed by the program while the runtime was working on it."""
    return (
        f"the gradient of {name} was changed between backward() and step(), while the runtime was working on it; call "
        "synchronize() before clipping, GradScaler or other changes, then step() inside skip_synchronize(), or use "
        'sync="backward"'
    )


def refuse_grad_scaler(why: str) -> None:
    """Inside the step() of a GradScaler."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _SCALER_STEP:
            raise errors.UnsupportedError(why)
        frame = frame.f_back


#: While gradients travel GradScaler has read and written them before step(), in ways that tensors do not tell.
SCALER_TOO_EARLY = (
    "GradScaler needs the combined gradients before step(): call synchronize() after backward(), and the step() of the "
    'scaler inside skip_synchronize(), or use sync="backward"'
)
#: With local updates.
SCALER_SKIPS = (
    "GradScaler skips steps of one rank alone, and with local updates ranks make their steps together; use autocast "
    "with bfloat16, which needs no scaler, or local_updates=None"
)
