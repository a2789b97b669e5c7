"""Texts of errors and warnings about the steps of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sirtaki import basics

#: Error of an optimizer that is used after another one has taken its parameters.
SUPERSEDED = (
    "a DistributedOptimizer made later has parameters of this one and combines their gradients; give all parameters to "
    "one optimizer, in groups if need be, and use the optimizer made last"
)
#: Error of a call through DistributedDataParallel of a model whose optimizer combines the gradients itself.
WRAPPED_TOO = (
    "DistributedDataParallel and the optimizer of the model both combine its gradients: give "
    "sirtaki.torch.ddp.accelerate() the wrapped model and the plain optimizer, or call the plain model"
)
#: GradScaler reads and writes gradients before step(), while they are in flight, without a trace on the tensors.
SCALER_TOO_EARLY = (
    "GradScaler needs the combined gradients before step(): call synchronize() after backward(), and the step() of the "
    'scaler inside skip_synchronize(), or use sync="backward"'
)
#: Error of GradScaler with local updates.
SCALER_SKIPS = (
    "GradScaler skips steps of one rank alone, and with local updates ranks make their steps together; use autocast "
    "with bfloat16, which needs no scaler, or local_updates=None"
)


def extra_backward_text(name: str, passes: int) -> str:
    """Returns the text for a second gradient in one step."""
    return (
        f"the gradient of {name} was computed more than backward_passes_per_step ({passes}) times before step(); raise "
        "backward_passes_per_step, or run the extra passes inside no_sync(), to accumulate. After a backward() that "
        "failed, call zero_grad() first"
    )


def late_gradients_text(name: str) -> str:
    """Returns the text for a backward that ends before gradients are combined."""
    return (
        f"backward() ends without the combined gradients of {name} and the other parameters of its optimizer, because "
        "not every rank's backward reaches them; step() waits for them, from now on. Call the optimizer's "
        "synchronize() before clipping and other changes of gradients"
    )


def unequal_params_text(name: str, count: int, total: int) -> str:
    """Returns the text for parameters that differ between ranks in the first step."""
    return (
        f"{name} is not the same on all ranks in the first step ({count} of {total} parameters differ), so the ranks "
        "train different models; call broadcast_parameters(model.state_dict(), root_rank=0) before it, after each load "
        "of a checkpoint. The option torch.unequal_models makes this an error, or gives all ranks rank 0's parameters"
    )


def early_join_text(rank: int) -> str:
    """Returns the text for a join() between backward and step()."""
    return (
        f"join() came in the middle of a step on rank {rank}: gradients were computed and not used. Call the "
        "optimizer's step() first"
    )


def stale_param_text(name: str) -> str:
    """Returns the text for a gradient of a parameter whose last update is pending."""
    return (
        f'{name} was used in the forward pass before its update: with sync="forward" a parameter is updated when its '
        "module, or one above that, is called, or it is read as an attribute of its module. Call wait() before code "
        'that uses parameters in other ways, or use sync="backward". The updates that were still to be made are lost'
    )


def uncombined_grad_text(groups: Sequence[dict[str, Any]], param: Tensor) -> str:
    """Returns the text for a gradient that would be applied without being combined."""
    places = [(g, i) for g, group in enumerate(groups) for i, p in enumerate(group["params"]) if p is param]
    group, place = places[0]
    return (
        f"parameter {place} of group {group} has a gradient that is not combined over the ranks: the parameter was not "
        "in the optimizer, or did not require a gradient, when DistributedOptimizer was called. Add parameters with "
        "add_param_group(); unfreeze them before the call, and freeze them again after it"
    )


Kind = tuple[torch.Size, torch.dtype, torch.device]


def changed_param_text(name: str, before: Kind, now: Kind) -> str:
    """Returns the text for a parameter that no longer matches the layout."""

    def text(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> str:
        where = "" if before[2] == now[2] else f" on {device}"
        return f"{dtype} {list(shape)}{where}".removeprefix("torch.")

    return (
        f"{name} is {text(*now)} on rank {basics.rank()} and was {text(*before)} in the first step, when the ranks "
        "agreed on what to send; convert, move or resize a model before its first step, or make a new optimizer for it"
    )


def edited_grad_text(name: str) -> str:
    """Returns the text for a gradient that the program changed while the runtime used it."""
    return (
        f"the gradient of {name} was changed between backward() and step(), while the runtime was working on it; call "
        "synchronize() before clipping, GradScaler or other changes, then step() inside skip_synchronize(), or use "
        'sync="backward"'
    )
