"""Refuses calls of a model through DistributedDataParallel while an optimizer combines its gradients itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from sirtaki import errors
from sirtaki.torch._live_objects import live_objects
from sirtaki.torch._optimizer.step_errors import WRAPPED_TOO


def refuse_calls_of_wrappers(params: Sequence[Tensor]) -> list[Any]:
    """Refuses calls with gradients of each DistributedDataParallel that has some of `params`.

    A program may keep one that it does not call any more, so its existence alone is no error.

    Returns:
        Handles of hooks, whose remove() allows the calls again.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return []
    ids = {id(p) for p in params}
    found = [one for one in live_objects(DistributedDataParallel) if any(id(p) in ids for p in _combined_by(one))]
    return [one.register_forward_pre_hook(partial(_refuse, id(one))) for one in found]


def _combined_by(wrapper: Any) -> Iterable[Tensor]:
    """Returns the parameters without those that the program has told the wrapper to ignore."""
    return getattr(wrapper, "_module_parameters", ())


@torch.compiler.disable
def _refuse(wrapper: int, called: Any, inputs: Any) -> None:
    """Hook of a wrapper before its forward pass; a copy of it has the hook, too, and other parameters."""
    del inputs
    if id(called) == wrapper and called.require_backward_grad_sync and torch.is_grad_enabled():
        raise errors.InvalidArgumentError(WRAPPED_TOO)
