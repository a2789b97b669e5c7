# ruff: noqa: PLR0917  (Horovod's signatures)
"""Operations on torch tensors, with the names, arguments and results of horovod.torch.

Functions ending in _async return a handle for synchronize() and poll(); those ending in _ write into their argument.
Names must be equal on all ranks; without a name the order of calls decides which operations meet. Every function raises
ValueError for a mistake found on this rank alone and HorovodInternalError for a failure that concerns several ranks; no
function hangs. Functions ending in _async take `priority`, which Horovod does not have: of several waiting operations,
those with the smallest number are sent first. By default operations of up to 64 KiB are urgent and others are not.
Supported dtypes: uint8, int8, uint16, int16, int32, int64, float16, bfloat16, float32, float64, bool; complex32,
complex64 and complex128, which are summed and averaged as pairs of real numbers; and, for operations that only move
data (broadcast, allgather, alltoall), uint32, uint64 and 8-bit floats.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from typing import Any

from torch import Tensor

from sirtaki import _core, errors
from sirtaki._local_sgd import check_join
from sirtaki.errors import require
from sirtaki.ops import (
    Adasum,
    Average,
    GroupHandle,
    Handle,
    Max,
    Min,
    Ops,
    Product,
    ReduceOp,
    Sum,
    check_reduce_op,
    group_names,
)
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.torch import _autograd
from sirtaki.torch._adapter import torch_ops as _ops
from sirtaki.torch._handles import get_future, poll, synchronize
from sirtaki.torch._module_hooks import finish_all_updates
from sirtaki.torch._optimizer.named_operations import repeated
from sirtaki.torch._optimizer.survivors import survivors
from sirtaki.torch._param_ownership import param_owners
from sirtaki.torch.compression import Compression, Compressor

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "get_future",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "join",
    "poll",
    "synchronize",
]


def _reduce_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    if average is not None:
        if op is not None:
            raise errors.InvalidArgumentError("give op or the deprecated average, not both")
        warnings.warn("average is deprecated; use op=Average or op=Sum", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    return Average if op is None else check_reduce_op(op)


def compressed_by(compression: type[Compressor], tensor: Tensor) -> tuple[Tensor, Any]:
    """Returns the result of compress(). The operation, which knows its name, refuses tensors that cannot be sent."""
    if not all(callable(getattr(compression, method, None)) for method in ("compress", "decompress")):
        raise errors.InvalidArgumentError(
            f"compression is {compression!r}; it must be Compression.none, fp16, bf16 or a class like them"
        )
    return compression.compress(tensor) if isinstance(tensor, Tensor) else (tensor, None)


# ---- allreduce ----


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> Handle:
    """Starts an allreduce into a new tensor; see allreduce()."""
    ops = _ops.within(process_set)
    scales = (prescale_factor, postscale_factor)
    return ops.start_one(ops.allreduce(tensor, name, _reduce_op(average, op), scales, in_place=False), priority)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> Handle:
    """Starts an allreduce into `tensor` itself, which must not be used until it is synchronized; see allreduce()."""
    ops = _ops.within(process_set)
    scales = (prescale_factor, postscale_factor)
    return ops.start_one(ops.allreduce(tensor, name, _reduce_op(average, op), scales, in_place=True), priority)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Returns the average, or another reduction, of a tensor over all ranks; differentiable.

    The gradient is the same reduction of the gradients of the ranks.

    Args:
        tensor: any shape, the same shape and dtype on all ranks; need not be contiguous.
        average: deprecated, use op.
        name: the same on all ranks; None: the order of calls decides.
        compression: Compression.fp16 or bf16 casts before sending and back afterwards.
        op: Average (default), Sum, Min, Max, Product or Adasum. Adasum adds orthogonal tensors and averages parallel
            ones, recursively by halves of the ranks: a and b make (1 - a.b / 2a.a) a + (1 - a.b / 2b.b) b; for
            floating-point tensors, each by itself in a group (Maleki et al., Scaling Distributed Training with Adaptive
            Summation, 2020). Adasum, Min, Max and Product have no gradient. Integers are averaged exactly and
            truncated; bool cannot be averaged, its Sum and Max are "or", its Product and Min "and".
        prescale_factor: multiplied before the reduction.
        postscale_factor: multiplied afterwards.
        process_set: the ranks that take part; all by default.

    Returns:
        A tensor of the same shape, dtype and device.

    Raises:
        ValueError: an argument is wrong on this rank.
        HorovodInternalError: ranks disagree about the tensor or the operation, or one is lost.
    """
    ops = _ops.within(process_set)
    compressed, context = compressed_by(compression, tensor)
    scales = (prescale_factor, postscale_factor)
    return compression.decompress(
        _autograd.Allreduce.apply(ops, compressed, name, _reduce_op(average, op), scales), context
    )


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduces `tensor` in place, outside autograd, and returns it; see allreduce()."""
    arguments = (average, name, op, prescale_factor, postscale_factor, process_set)
    work = partial(allreduce_async_, tensor, *arguments)
    return repeated(_ops.within(process_set), lambda: synchronize(work()), [tensor], in_place=True)


def _grouped_allreduce(
    ops: Ops,
    tensors: Sequence[Tensor],
    average: bool | None,
    name: str | None,
    op: ReduceOp | None,
    scales: tuple[float, float],
    in_place: bool,
    priority: int,
) -> GroupHandle:
    chosen = _reduce_op(average, op)
    names = group_names(name, len(tensors))
    if in_place:
        written = [t.data_ptr() for t in tensors if isinstance(t, Tensor) and t.numel() > 0]
        require(len(set(written)) == len(written), "a tensor is in the group twice; its result would depend on chance")
    work = [ops.allreduce(t, n, chosen, scales, in_place) for t, n in zip(tensors, names, strict=True)]
    return GroupHandle(ops.start(work, priority))


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> GroupHandle:
    """Starts an allreduce of several tensors that become ready together; see allreduce()."""
    ops = _ops.within(process_set)
    scales = (prescale_factor, postscale_factor)
    return _grouped_allreduce(ops, tensors, average, name, op, scales, False, priority)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> GroupHandle:
    """Starts an in-place allreduce of several tensors that become ready together; see allreduce()."""
    ops = _ops.within(process_set)
    scales = (prescale_factor, postscale_factor)
    return _grouped_allreduce(ops, tensors, average, name, op, scales, True, priority)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Returns the reductions of several tensors that become ready together; differentiable. See allreduce()."""
    ops = _ops.within(process_set)
    pairs = [compressed_by(compression, tensor) for tensor in tensors]
    scales = (prescale_factor, postscale_factor)
    outputs = _autograd.GroupedAllreduce.apply(
        ops, name, _reduce_op(average, op), scales, *(tensor for tensor, _ in pairs)
    )
    return [compression.decompress(out, context) for out, (_, context) in zip(outputs, pairs, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduces several tensors in place, outside autograd, and returns them; see allreduce()."""
    arguments = (average, name, op, prescale_factor, postscale_factor, process_set)
    work = partial(grouped_allreduce_async_, tensors, *arguments)
    return repeated(_ops.within(process_set), lambda: synchronize(work()), tensors, in_place=True)


# ---- allgather ----


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set, *, priority: int = 0
) -> Handle:
    """Starts an allgather; see allgather()."""
    ops = _ops.within(process_set)
    return ops.start_one(ops.allgather(tensor, name), priority)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Returns the tensors of all ranks, concatenated along dimension 0 in rank order; differentiable.

    The gradient is this rank's rows of the average of the ranks' gradients, as in Horovod; times size() it is the
    gradient of the sum of all losses.

    Args:
        tensor: at least one dimension. Dimension 0 may differ between ranks (and be 0), the others and the dtype may
            not.
        name: the same on all ranks; None: the order of calls decides.
        process_set: the ranks that take part; all by default.

    Raises:
        ValueError: an argument is wrong on this rank.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    ops = _ops.within(process_set)
    return _autograd.Allgather.apply(ops, tensor, name)


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> GroupHandle:
    """Starts an allgather of several tensors that become ready together; see allgather()."""
    ops = _ops.within(process_set)
    names = group_names(name, len(tensors))
    work = [ops.allgather(t, n) for t, n in zip(tensors, names, strict=True)]
    return GroupHandle(ops.start(work, priority))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Gathers several tensors that become ready together; differentiable. See allgather()."""
    ops = _ops.within(process_set)
    return list(_autograd.GroupedAllgather.apply(ops, name, *tensors))


# ---- broadcast ----


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> Handle:
    """Starts a broadcast into a new tensor; see broadcast()."""
    ops = _ops.within(process_set)
    return ops.start_one(ops.broadcast(tensor, root_rank, name, in_place=False), priority)


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> Handle:
    """Starts a broadcast into `tensor` itself; see broadcast()."""
    ops = _ops.within(process_set)
    return ops.start_one(ops.broadcast(tensor, root_rank, name, in_place=True), priority)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Returns the tensor of `root_rank` on all ranks; differentiable.

    The gradient is the average of the ranks' gradients on the root, and zeros elsewhere, as in Horovod.

    Args:
        tensor: the same shape and dtype on all ranks.
        root_rank: a rank of the job.
        name: the same on all ranks; None: the order of calls decides.
        process_set: the ranks that take part; all by default.

    Raises:
        ValueError: an argument is wrong on this rank.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    ops = _ops.within(process_set)
    return _autograd.Broadcast.apply(ops, tensor, root_rank, name)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrites `tensor` with that of `root_rank`, outside autograd, and returns it; see broadcast()."""
    work = partial(broadcast_async_, tensor, root_rank, name, process_set)
    return repeated(_ops.within(process_set), lambda: synchronize(work()), [tensor], root_rank)


# ---- alltoall ----


def _split_list(splits: Tensor | Sequence[int] | None) -> list[int] | None:
    if splits is None:
        return None
    values = splits.tolist() if isinstance(splits, Tensor) else splits
    well_formed = isinstance(values, Sequence) and len(values) > 0 and all(isinstance(v, Integral) for v in values)
    if not well_formed:
        raise errors.InvalidArgumentError(
            f"splits is {splits!r}; it must be one-dimensional and of integers, one for each rank"
        )
    return [int(v) for v in values]


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> Handle:
    """Starts an alltoall; see alltoall(). The result is always a pair: the tensor, and the rows received."""
    ops = _ops.within(process_set)
    return ops.start_one(ops.alltoall(tensor, _split_list(splits), name, return_received=True), priority)


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends part r of dimension 0 to rank r and concatenates the parts received, in rank order; differentiable.

    The gradient of each row goes back to the rank that sent the row.

    Args:
        tensor: at least one dimension.
        splits: rows for each rank: size() integers whose sum is dimension 0; None: equal parts.
        name: the same on all ranks; None: the order of calls decides.
        process_set: the ranks that take part; all by default.

    Returns:
        The concatenated tensor; with splits, a pair of that and the int32 tensor of rows received from each rank.

    Raises:
        ValueError: an argument is wrong on this rank.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    ops = _ops.within(process_set)
    output, received = _autograd.Alltoall.apply(ops, tensor, _split_list(splits), name)
    return output if splits is None else (output, received)


# ---- the rest ----


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of `process_set` have called it."""
    ops = _ops.within(process_set)
    repeated(ops, lambda: synchronize(ops.start_one(ops.barrier())))


def join(device: int = -1) -> int:
    """Waits for the ranks with more batches. Call it after the last batch, on every rank.

    A joined rank contributes zeros to the steps of the others; averages still divide by size(). Its own parameters do
    not change, so update them afterwards from the rank that is returned:

        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)

    Until all ranks have joined, a joined rank also takes part in named operations: with zeros in allreduce() (grouped,
    async, sparse) and reducescatter(), without rows in allgather() and alltoall(), and barrier() does not wait for it.
    A broadcast() from it, and Min, Max and Product, raise HorovodInternalError on the others; under --horovod, as in
    Horovod, so does every operation but allreduce() and barrier(). Every rank needs at least one batch before the first
    join().

    Args:
        device: accepted as in Horovod; not used.

    Returns:
        The rank that joined last. It has made every step.

    Raises:
        ValueError: gradients were computed and step() was not called.
        UnsupportedError: with local updates, which need the same number of steps on all ranks.
        HorovodInternalError: a rank is lost, or has left.
    """
    del device
    finish_all_updates()
    check_join()
    param_owners.check_join()
    survivors.reset()
    return _core.join()
