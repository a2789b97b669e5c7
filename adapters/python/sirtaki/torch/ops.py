# ruff: noqa: PLR0917  (Horovod's signatures)
"""Operations on torch tensors, with the names, arguments and results of horovod.torch.

Functions ending in _async return a handle for synchronize() and poll(); those ending in _ write into their argument.
Names must be equal on all ranks; without a name the order of calls decides which operations meet. Every function raises
ValueError for what is wrong on this rank alone and HorovodInternalError for what concerns several; neither hangs.
Functions ending in _async take `priority`, which Horovod does not have: where bytes of several operations wait, those
of the smallest number go first. Without it operations of up to 64 KiB are urgent and others are not.
Supported dtypes: uint8, int8, uint16, int16, int32, int64, float16, bfloat16, float32, float64, bool; complex32,
complex64 and complex128, which are summed and averaged as pairs of real numbers; and, where they are moved only
(broadcast, allgather, alltoall), uint32, uint64 and 8-bit floats.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from sirtaki import _core, errors
from sirtaki._local_sgd import check_join
from sirtaki.errors import require
from sirtaki.ops import GroupHandle, Handle, Ops, ReduceOp, check_reduce_op, group_names
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.torch import _autograd
from sirtaki.torch._adapter import torch_ops as _ops
from sirtaki.torch._cuda import CudaQueue
from sirtaki.torch._module_hooks import finish_all_updates
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

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM


def _reduce_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    if average is not None:
        if op is not None:
            raise errors.InvalidArgumentError("give op or the deprecated average, not both")
        warnings.warn("average is deprecated; use op=Average or op=Sum", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    return Average if op is None else check_reduce_op(op)


def compressed_by(compression: type[Compressor], tensor: Tensor) -> tuple[Tensor, Any]:
    """Returns the result of compress(). The operation, which knows the name, refuses tensors that cannot be sent."""
    if not all(callable(getattr(compression, method, None)) for method in ("compress", "decompress")):
        raise errors.InvalidArgumentError(
            f"compression is {compression!r}; it must be Compression.none, fp16, bf16 or a class like them"
        )
    return compression.compress(tensor) if isinstance(tensor, Tensor) else (tensor, None)


def _checked(handle: Handle | GroupHandle) -> Handle | GroupHandle:
    if not isinstance(handle, Handle | GroupHandle):
        raise errors.InvalidArgumentError(
            f"expected the handle that an _async function returned, not {handle!r} of type {type(handle).__name__}"
        )
    return handle


def synchronize(handle: Handle | GroupHandle | Callable[[], Tensor]) -> Any:
    """Waits for an operation and returns its result: a tensor, or a list of tensors for grouped operations.

    alltoall_async() gives (tensor, rows received from each rank). Again on the same handle: the same result.
    """
    return handle() if callable(handle) else _checked(handle).wait()


def poll(handle: Handle | GroupHandle) -> bool:
    """True when synchronize(handle) would not block."""
    return _checked(handle).poll()


def get_future(handle: Handle | GroupHandle) -> torch.futures.Future[Any]:
    """A torch future that gets the operation's result, or its error."""
    handle = _checked(handle)
    handles = handle.handles if isinstance(handle, GroupHandle) else [handle]
    # torch wants to know of the GPUs before, and makes whoever waits for the future wait for their streams.
    devices = list({one.queue.device for one in handles if isinstance(one.queue, CudaQueue)})
    future: torch.futures.Future[Any] = torch.futures.Future(devices=devices or None)

    def resolve() -> None:
        try:
            result = handle.wait()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    handle.on_done(resolve)
    return future


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
    """Starts an allreduce into `tensor` itself; leave it alone until it is synchronized."""
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
    """The average (or another combination) of a tensor over all ranks; differentiable.

    Args:
        tensor: any shape, the same on all ranks; need not be contiguous.
        average: deprecated, use op.
        name: the same on all ranks.
        compression: Compression.fp16 or bf16 casts before sending and back afterwards.
        op: Average (default), Sum, Min, Max, Product or Adasum. Adasum adds what is orthogonal and averages what is
            parallel, pair of halves by pair of halves: a and b make (1 - a.b / 2a.a) a + (1 - a.b / 2b.b) b; for
            floating-point tensors, each by itself in a group (Maleki et al., Scaling Distributed Training with Adaptive
            Summation, 2020). There is no gradient through it, nor through Min, Max and Product. Integers are averaged
            exactly and truncated; bool cannot be averaged, its Sum and Max are "or", its Product and Min "and".
        prescale_factor: multiplied before the ranks are combined.
        postscale_factor: multiplied afterwards.
        process_set: the ranks that take part; all by default.

    The gradient is the same reduction of the ranks' gradients.
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
    """allreduce() into `tensor` itself, outside autograd."""
    handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    return synchronize(handle)


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
    """Starts an allreduce of several tensors that become ready together."""
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
    """grouped_allreduce_async() into the tensors themselves."""
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
    """allreduce() of several tensors that become ready together; differentiable."""
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
    """grouped_allreduce() into the tensors themselves, outside autograd."""
    return synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )


# ---- allgather ----


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set, *, priority: int = 0
) -> Handle:
    """Starts an allgather; see allgather()."""
    ops = _ops.within(process_set)
    return ops.start_one(ops.allgather(tensor, name), priority)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """The tensors of all ranks, joined along dimension 0 in rank order; differentiable.

    Dimension 0 may differ between ranks (and be 0), the others and the dtype may not. The gradient is this rank's rows
    of the average of the ranks' gradients, as in Horovod: times size() it is that of the sum of all ranks' losses.
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
    """Starts an allgather of several tensors that become ready together."""
    ops = _ops.within(process_set)
    names = group_names(name, len(tensors))
    work = [ops.allgather(t, n) for t, n in zip(tensors, names, strict=True)]
    return GroupHandle(ops.start(work, priority))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """allgather() of several tensors that become ready together; differentiable."""
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
    """Starts a broadcast into a new tensor."""
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
    """Starts a broadcast into `tensor` itself."""
    ops = _ops.within(process_set)
    return ops.start_one(ops.broadcast(tensor, root_rank, name, in_place=True), priority)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensor of `root_rank`; all ranks give one of the same shape and dtype. Differentiable.

    The gradient is the average of the ranks' gradients on the root, and zeros elsewhere, as in Horovod.
    """
    ops = _ops.within(process_set)
    return _autograd.Broadcast.apply(ops, tensor, root_rank, name)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """broadcast() into `tensor` itself, outside autograd."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


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
    """Starts an alltoall; see alltoall(). Its result is a pair, without splits too: the tensor, and rows received."""
    ops = _ops.within(process_set)
    return ops.start_one(ops.alltoall(tensor, _split_list(splits), name, return_received=True), priority)


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends part r of dimension 0 to rank r and joins what comes from rank 0, 1, ... Differentiable.

    Each row of the gradient goes back to where it came from.

    Args:
        tensor: at least one dimension.
        splits: rows for each rank, size() integers whose sum is dimension 0; None: equal parts.
        name: the same on all ranks.
        process_set: the ranks that take part; all by default.

    Returns:
        The joined tensor; with splits, that and the int32 tensor of rows received from each rank.
    """
    ops = _ops.within(process_set)
    output, received = _autograd.Alltoall.apply(ops, tensor, _split_list(splits), name)
    return output if splits is None else (output, received)


# ---- the rest ----


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks have called it."""
    ops = _ops.within(process_set)
    synchronize(ops.start_one(ops.barrier()))


def join(device: int = -1) -> int:
    """For ranks with different numbers of batches: call it behind the last one, on every rank.

    A rank that waits here takes part in the others' steps with zeros; averages still divide by size(). Its own
    parameters stay as they are, so bring them up to date afterwards from the rank that is returned:

        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)

    Until all ranks are here, it takes part in the others' operations by name, too: with zeros in allreduce() (grouped,
    async, sparse) and reducescatter(), without rows in allgather() and alltoall(), and barrier() does not wait for it.
    A broadcast() from it, and Min, Max and Product, raise HorovodInternalError on the others; under --horovod, as in
    Horovod, so does all but allreduce() and barrier(). Every rank needs at least one batch before the first join().

    Args:
        device: not used; as in Horovod.

    Returns:
        The rank that came last. It has made every step.

    Raises:
        ValueError: gradients were computed and step() was not called.
        UnsupportedError: with local updates, which need the same number of steps on all ranks.
        HorovodInternalError: a rank is lost, or has left.
    """
    del device
    finish_all_updates()
    check_join()
    param_owners.check_join()
    return _core.join()
