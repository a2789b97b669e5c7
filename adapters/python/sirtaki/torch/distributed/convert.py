"""Between what torch.distributed gives a group and what the operations take: operators, flat tensors, times."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from datetime import timedelta
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import ReduceOp as TorchOp

from sirtaki import errors
from sirtaki.errors import require
from sirtaki.ops import ReduceOp
from sirtaki.torch._adapter import check_kind

_Class = TypeVar("_Class", bound=type)
_OPS = (
    (TorchOp.SUM, ReduceOp.SUM),
    (TorchOp.AVG, ReduceOp.AVERAGE),
    (TorchOp.MIN, ReduceOp.MIN),
    (TorchOp.MAX, ReduceOp.MAX),
    (TorchOp.PRODUCT, ReduceOp.PRODUCT),
)


def reduce_op(opts: Any, what: str) -> ReduceOp:
    """The operator in torch's options, or the one given in their place. Raises UnsupportedError for others."""
    wanted = TorchOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    for theirs, ours in _OPS:
        if wanted == theirs:
            return ours
    name = str(getattr(wanted, "op", wanted)).rpartition(".")[2]
    raise errors.UnsupportedError(
        f"{what}: ReduceOp.{name} does not exist here; there are SUM, AVG, MIN, MAX and PRODUCT. A group of Gloo's has "
        'others: torch.distributed.new_group(backend="gloo")'
    )


def seconds(timeout: timedelta) -> float:
    """A timeout in seconds that a lock can wait for; some programs give the largest there is."""
    return min(timeout.total_seconds(), threading.TIMEOUT_MAX / 2)


def no_compile(cls: _Class) -> _Class:
    """Keeps torch.compile out of the public methods of a class, which it would take apart; they run between graphs."""
    for name, method in list(vars(cls).items()):
        # Aliases for C++ have names that begin with an underscore.
        if isinstance(method, FunctionType) and not method.__name__.startswith("_"):
            setattr(cls, name, torch.compiler.disable(method))
    return cls


def single(tensors: Tensor | Sequence[Tensor], what: str) -> Tensor:
    """The tensor in torch's list of those of each of a process's devices."""
    if isinstance(tensors, Tensor):
        return tensors
    require(len(tensors) == 1, f"{what} takes one tensor a rank, not {len(tensors)}")
    return tensors[0]


def require_host_memory(what: str, tensors: Iterable[Any]) -> None:
    """Raises UnsupportedError where one is in memory of a GPU."""
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.device.type != "cpu":
            raise errors.UnsupportedError(
                f"{what}: a tensor is on {tensor.device}, and this backend of torch.distributed takes tensors of the "
                "CPU; copy it with .cpu() first, or use operations of sirtaki.torch, which take tensors of a GPU"
            )


def flat(tensor: Tensor) -> Tensor:
    """Elements in row-major order: the tensor's own memory where it can be, else a copy. Outside autograd."""
    check_kind(tensor)
    return tensor.detach().reshape(-1)


def names(name: str, tensors: Sequence[Tensor]) -> list[str]:
    """A name for each tensor of a call; with one it has the name alone, and so meets other kinds of calls."""
    return [name] if len(tensors) == 1 else [f"{name}.{i}" for i in range(len(tensors))]


def concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """flat() of all, one after another."""
    parts = [flat(tensor) for tensor in tensors]
    memory = torch.empty(sum(part.numel() for part in parts), dtype=parts[0].dtype, device=parts[0].device)
    # torch.cat() does not take every type.
    for target, part in zip(memory.split([part.numel() for part in parts]), parts, strict=True):
        target.copy_(part)
    return memory


def copy(target: Tensor, source: Tensor) -> Tensor:
    """Writes as many elements into `target`, of any strides, outside autograd, and returns it."""
    target.detach().copy_(source.view(target.shape))
    return target


def split_into(targets: Sequence[Tensor], concatenated: Tensor) -> list[Tensor]:
    """Fills `targets` one after another from a flat tensor of as many elements."""
    if not targets:
        return []
    parts = concatenated.split([target.numel() for target in targets])
    return [copy(target, part) for target, part in zip(targets, parts, strict=True)]
