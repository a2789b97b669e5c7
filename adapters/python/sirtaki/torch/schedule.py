"""Learning rates for several ranks."""

from __future__ import annotations

import logging
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from sirtaki import basics
from sirtaki.errors import require

_log = logging.getLogger("sirtaki")


def scale_lr(optimizer: torch.optim.Optimizer, warmup_steps: int = 0) -> torch.optim.lr_scheduler.LRScheduler:
    """Multiplies learning rates by size(), because the global batch is that much larger.

    The linear scaling rule with a gradual warm-up: Goyal et al., Accurate, Large Minibatch SGD, 2017. Meant for SGD
    with an unchanged batch for each rank; if the global batch is unchanged, keep the learning rates.

    Args:
        optimizer: an optimizer without schedulers; schedulers made later are applied on top.
        warmup_steps: number of steps in which the learning rate rises linearly from its old value; one epoch or
            several.

    Returns:
        A scheduler: call its step() after each step of the optimizer, warmup_steps times or more.

    Raises:
        ValueError: an argument is wrong, or the optimizer has a scheduler or was loaded from a checkpoint, whose
            learning rates are scaled already: call this before load_state_dict().
    """
    known = isinstance(optimizer, torch.optim.Optimizer)
    require(known, f"expected a torch.optim.Optimizer, not {type(optimizer).__name__}")
    counted = isinstance(warmup_steps, Integral) and warmup_steps >= 0
    require(counted, f"warmup_steps is {warmup_steps!r}, not an integer of 0 or more")
    fresh = not any("initial_lr" in group for group in optimizer.param_groups)
    require(
        fresh,
        "scale_lr() needs an optimizer without schedulers that was not loaded from a checkpoint: call it before you "
        "make schedulers and before load_state_dict()",
    )
    factor = basics.size()
    for group in optimizer.param_groups:
        before = float(group["lr"])
        _set(group, before * factor)
        if basics.rank() == 0:
            _log.info("scale_lr: learning rate %g becomes %g for %d ranks", before, before * factor, factor)
    start = 1.0 / factor if warmup_steps > 0 else 1.0
    return torch.optim.lr_scheduler.LinearLR(optimizer, start, 1.0, max(1, int(warmup_steps)))


def _set(group: dict[str, Any], value: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(value)
    else:
        group["lr"] = value
