# ruff: noqa: PLR0917  (Horovod's signatures)
"""Reduce-scatter of torch tensors, with the names, arguments and results of horovod.torch."""

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
    """Starts a reduce-scatter; see reducescatter()."""
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
    """Reduces a tensor over all ranks and returns this rank's block of dimension 0; differentiable.

    If size() does not divide dimension 0, the first ranks get one row more. As in Horovod, the gradient is the gathered
    gradient of all ranks: unchanged for Average, times size() for Sum, and times both factors.

    Args:
        tensor: at least one dimension, the same shape and dtype on all ranks.
        name: the same on all ranks; None: the order of calls decides.
        compression: Compression.fp16 or bf16 casts before sending and back afterwards.
        op: Average (default), Sum, Min, Max or Product.
        process_set: the ranks that take part; all by default.
        prescale_factor: multiplied before the reduction.
        postscale_factor: multiplied afterwards.

    Returns:
        A tensor of the same dtype: the rows of this rank.

    Raises:
        ValueError: an argument is wrong on this rank.
        HorovodInternalError: ranks disagree, or one is lost.
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
    """Starts a reduce-scatter of several tensors that become ready together; see reducescatter()."""
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
    """Reduces and scatters several tensors that become ready together; differentiable. See reducescatter()."""
    ops = _ops.within(process_set)
    pairs = [compressed_by(compression, tensor) for tensor in tensors]
    scales = (prescale_factor, postscale_factor)
    outputs = _autograd.GroupedReducescatter.apply(
        ops, name, check_reduce_op(op), scales, *(tensor for tensor, _ in pairs)
    )
    return [compression.decompress(out, context) for out, (_, context) in zip(outputs, pairs, strict=True)]
