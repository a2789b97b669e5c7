"""Converts arguments of torch.distributed for the operations: reductions, flat tensors, timeouts."""

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
from sirtaki.torch._adapter import check_kind, is_lazy

_Class = TypeVar("_Class", bound=type)
_OPS = (
    (TorchOp.SUM, ReduceOp.SUM),
    (TorchOp.AVG, ReduceOp.AVERAGE),
    (TorchOp.MIN, ReduceOp.MIN),
    (TorchOp.MAX, ReduceOp.MAX),
    (TorchOp.PRODUCT, ReduceOp.PRODUCT),
)


def reduce_op(opts: Any, what: str) -> ReduceOp:
    """Returns the reduction in the options of torch, or the one given instead. Raises UnsupportedError for others."""
    wanted = TorchOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    for theirs, ours in _OPS:
        if wanted == theirs:
            return ours
    name = str(getattr(wanted, "op", wanted)).rpartition(".")[2]
    raise errors.UnsupportedError(
        f"{what}: ReduceOp.{name} is not supported; use SUM, AVG, MIN, MAX or PRODUCT. A Gloo group has others: "
        'torch.distributed.new_group(backend="gloo")'
    )


def seconds(timeout: timedelta) -> float:
    """Returns a timeout in seconds that a lock accepts; some programs pass the largest timedelta."""
    return min(timeout.total_seconds(), threading.TIMEOUT_MAX / 2)


def no_compile(cls: _Class) -> _Class:
    """Keeps torch.compile from tracing the public methods of a class; they run between graphs."""
    for name, method in list(vars(cls).items()):
        # Aliases for C++ have names that begin with an underscore.
        if isinstance(method, FunctionType) and not method.__name__.startswith("_"):
            setattr(cls, name, torch.compiler.disable(method))
    return cls


def single(tensors: Tensor | Sequence[Tensor], what: str) -> Tensor:
    """Returns the only tensor of a list; torch passes one tensor for each device of a process."""
    if isinstance(tensors, Tensor):
        return tensors
    require(len(tensors) == 1, f"{what} takes one tensor a rank, not {len(tensors)}")
    return tensors[0]


def require_memory(what: str, tensors: Iterable[Any]) -> None:
    """Requires tensors of one device, the CPU or a CUDA GPU.

    Raises:
        UnsupportedError: a tensor is on another kind of device.
        InvalidArgumentError: two tensors are on different devices.
    """
    devices = {tensor.device: None for tensor in tensors if isinstance(tensor, Tensor)}  # in order
    for device in devices:
        if device.type not in ("cpu", "cuda"):
            raise errors.UnsupportedError(
                f"{what}: a tensor is on {device}, and this backend of torch.distributed takes tensors of CPUs and "
                "CUDA GPUs; copy it with .cpu() first"
            )
    require(
        len(devices) <= 1,
        f"{what}: tensors are on {' and '.join(map(str, devices))}; those of one call must be on one device",
    )


def flat(tensor: Tensor) -> Tensor:
    """Returns the elements in row-major order, outside autograd: a view if possible, else a copy."""
    check_kind(tensor)
    return tensor.detach().reshape(-1)


def names(name: str, tensors: Sequence[Tensor]) -> list[str]:
    """Returns a name for each tensor of a call. A single tensor gets the name alone, as in other kinds of calls."""
    return [name] if len(tensors) == 1 else [f"{name}.{i}" for i in range(len(tensors))]


def concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """Returns flat() of all tensors in one tensor."""
    parts = [flat(tensor) for tensor in tensors]
    memory = torch.empty(sum(part.numel() for part in parts), dtype=parts[0].dtype, device=parts[0].device)
    # torch.cat() does not support every dtype.
    for target, part in zip(memory.split([part.numel() for part in parts]), parts, strict=True):
        target.copy_(part)
    return memory


def _addresses(tensor: Tensor) -> tuple[int, int]:
    """Returns the addresses of the first byte of a tensor and behind its last one."""
    begin = tensor.data_ptr()
    if tensor.numel() == 0:
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def result_memory(targets: Sequence[Tensor], source: Tensor, own: int | None = None) -> Tensor | None:
    """Returns flat memory on a GPU for as many elements as `targets` hold, that of a single one if possible.

    Returns None on the CPU, where the runtime allocates the result. If the memory of the source overlaps that of its
    target, it must begin `own` elements behind it, else the result needs other memory.
    """
    if not source.is_cuda:
        return None
    plain = len(targets) == 1 and targets[0].is_contiguous() and not is_lazy(targets[0])
    if plain and targets[0].dtype == source.dtype:
        target_begin, target_end = _addresses(targets[0])
        source_begin, source_end = _addresses(source)
        apart = source_end <= target_begin or target_end <= source_begin
        in_place = own is not None and source_begin == target_begin + own * source.element_size()
        if apart or (source.is_contiguous() and in_place):
            return flat(targets[0])
    return source.detach().new_empty(sum(target.numel() for target in targets))


def copy(target: Tensor, source: Tensor) -> Tensor:
    """Copies as many elements into `target`, of any strides, outside autograd, and returns it.

    Does nothing if both are the same memory.
    """
    if target.data_ptr() == source.data_ptr() and target.is_contiguous():
        return target
    target.detach().copy_(source.view(target.shape))
    return target


def split_into(targets: Sequence[Tensor], concatenated: Tensor) -> list[Tensor]:
    """Fills `targets` one after another from a flat tensor with as many elements."""
    if not targets:
        return []
    parts = concatenated.split([target.numel() for target in targets])
    return [copy(target, part) for target, part in zip(targets, parts, strict=True)]
