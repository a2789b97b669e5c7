# ruff: noqa: PLR0917  (Horovod's signatures)
"""reducescatter of torch tensors, with the names, arguments and results of horovod.torch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sirtaki.ops import GroupHandle, Handle, ReduceOp, check_reduce_op, group_names
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.torch import _autograd
from sirtaki.torch._adapter import torch_ops as _ops
from sirtaki.torch.compression import Compression, Compressor
from sirtaki.torch.ops import Average, compressed_by


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: int = 0,
) -> Handle:
    """Starts a reducescatter; see reducescatter()."""
    ops = _ops.within(process_set)
    return ops.start_one(
        ops.reducescatter(tensor, name, check_reduce_op(op), (prescale_factor, postscale_factor)), priority
    )


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Combines a tensor over all ranks and keeps this rank's block of dimension 0; differentiable.

    When dimension 0 does not divide by size(), the first ranks get one row more. The gradient is, as in Horovod, that
    of all ranks, gathered: as it is for Average, times size() for Sum, and times both factors.
    """
    ops = _ops.within(process_set)
    compressed, context = compressed_by(compression, tensor)
    scales = (prescale_factor, postscale_factor)
    return compression.decompress(
        _autograd.Reducescatter.apply(ops, compressed, name, check_reduce_op(op), scales), context
    )


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: int = 0,
) -> GroupHandle:
    """Starts a reducescatter of several tensors that become ready together."""
    ops = _ops.within(process_set)
    scales = (prescale_factor, postscale_factor)
    names = group_names(name, len(tensors))
    work = [ops.reducescatter(t, n, check_reduce_op(op), scales) for t, n in zip(tensors, names, strict=True)]
    return GroupHandle(ops.start(work, priority))


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """reducescatter() of several tensors that become ready together; differentiable."""
    ops = _ops.within(process_set)
    pairs = [compressed_by(compression, tensor) for tensor in tensors]
    scales = (prescale_factor, postscale_factor)
    outputs = _autograd.GroupedReducescatter.apply(
        ops, name, check_reduce_op(op), scales, *(tensor for tensor, _ in pairs)
    )
    return [compression.decompress(out, context) for out, (_, context) in zip(outputs, pairs, strict=True)]
