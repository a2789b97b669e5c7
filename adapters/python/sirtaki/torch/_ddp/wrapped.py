"""Reads a DistributedDataParallel: its parameters, its ranks, its timeout; refuses other wrappers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.constants import default_pg_timeout
from torch.nn.parallel import DistributedDataParallel

from sirtaki import errors
from sirtaki.errors import require
from sirtaki.process_sets import ProcessSet
from sirtaki.torch._ddp.texts import changed_model_text
from sirtaki.torch._optimizer.parameters import refuse_sharded
from sirtaki.torch.distributed.convert import seconds

_SHARDED = ("FullyShardedDataParallel", "FSDPModule")


def find_wrapper(model: nn.Module) -> DistributedDataParallel | None:
    """Returns the DistributedDataParallel that `model` is, compiled or not; None for a plain model.

    Raises:
        InvalidArgumentError: `model` is no module, or has a DistributedDataParallel inside.
        UnsupportedError: `model` or a part of it is sharded by FSDP.
    """
    model = getattr(model, "_orig_mod", model)
    require(isinstance(model, nn.Module), f"accelerate() takes a model, not a {type(model).__name__}")
    for part in model.modules():
        if any(cls.__name__ in _SHARDED for cls in type(part).__mro__):
            raise errors.UnsupportedError(
                "the model is sharded by FSDP, which combines gradients of shards itself: use accelerate() of "
                "sirtaki.torch.fsdp (docs/fsdp.md), or FSDP over the backend sirtaki (docs/pytorch_distributed.md)"
            )
    if isinstance(model, DistributedDataParallel):
        return model
    inside = [name for name, part in model.named_modules() if isinstance(part, DistributedDataParallel)]
    require(
        not inside,
        f"accelerate() got a {type(model).__name__} with a DistributedDataParallel inside: give it that one "
        f"(model.{inside[0] if inside else ''}), or wrap the whole model",
    )
    return None


def named_params(wrapper: DistributedDataParallel) -> tuple[list[str], list[Tensor]]:
    """Returns names, as in the plain model, and parameters whose gradients are combined.

    Raises:
        InvalidArgumentError: the model was changed after it was wrapped.
        UnsupportedError: a parameter is sharded.
    """
    ignored = set(getattr(wrapper, "parameters_to_ignore", ()))
    pairs = [(n, p) for n, p in wrapper.module.named_parameters() if p.requires_grad and n not in ignored]
    names, params = [name for name, _ in pairs], [param for _, param in pairs]
    refuse_sharded(names, params)
    wrapped = {id(p) for p in getattr(wrapper, "_module_parameters", params)}
    changed = [name for name, param in pairs if id(param) not in wrapped]
    require(not changed, changed_model_text(changed or names))
    return names, params


def process_set_of(wrapper: DistributedDataParallel) -> ProcessSet:
    """Returns the ranks of the process group. Raises UnsupportedError unless they are in ascending order."""
    ranks = distributed.get_process_group_ranks(wrapper.process_group)
    if ranks != sorted(ranks):
        raise errors.UnsupportedError(
            f"the process group of the model has ranks {ranks}; accelerate() takes groups in ascending order: "
            f"new_group({sorted(ranks)})"
        )
    return ProcessSet(None if len(ranks) == distributed.get_world_size() else ranks)


def timeout_of(wrapper: DistributedDataParallel) -> float:
    """Returns the seconds that the process group gives its collectives."""
    group: Any = wrapper.process_group
    limit = getattr(group, "timeout_seconds", None)
    if limit is not None:
        return float(limit)
    device = next((p.device for p in wrapper.parameters()), torch.device("cpu"))
    try:
        return seconds(group._get_backend(device).options._timeout)
    except (AttributeError, RuntimeError):
        return seconds(default_pg_timeout)
