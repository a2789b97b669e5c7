# ruff: noqa: PLR0917  (Horovod's arguments)
"""Operations on tensors of TensorFlow, in eager code and in tf.function, with the signatures of horovod.tensorflow.

All are differentiable, with the factors of Horovod (see _op_gradients.py). `device_dense`, `device_sparse` and
`ignore_name_scope` are accepted as in Horovod and not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sirtaki import _core, errors
from sirtaki._local_sgd import check_join
from sirtaki.errors import require
from sirtaki.ops import Adasum, Average, Max, Min, Product, ReduceOp, Sum, check_reduce_op, check_root
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.tensorflow._op_calls import call, group_attributes, names_for, public, reduce_attributes, to_tensors
from sirtaki.tensorflow.compression import Compression, Compressor

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]


def reduce_op_of(average: bool | None, op: Any) -> ReduceOp:
    """Returns the reduction that `average` and `op` ask for; at most one of them may be given."""
    if average is not None:
        require(op is None, "average and op are both given; give op alone")
        return Average if average else Sum
    return Average if op is None else check_reduce_op(op)


def _compressed(compression: Any, tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[Any]]:
    usable = all(callable(getattr(compression, name, None)) for name in ("compress", "decompress"))
    require(
        usable,
        f"compression is {compression!r}; single operations take Compression.none, fp16, bf16 or a class with "
        "compress() and decompress(), and DistributedOptimizer takes the others",
    )
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [tensor for tensor, _ in pairs], [context for _, context in pairs]


# ---- allreduce ----


@public
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks.

    Args:
        tensor: a dense tensor of any shape, the same shape and dtype on all ranks; or tf.IndexedSlices, whose rows are
            gathered from all ranks (Average and Sum).
        average: the older form of op=Average (True) or op=Sum (False).
        device_dense: accepted as in Horovod; not used.
        device_sparse: accepted as in Horovod; not used.
        compression: casts before sending and back afterwards.
        op: Average (default; integers are truncated), Sum, Min, Max, Product or Adasum.
        prescale_factor: multiplied before the reduction.
        postscale_factor: multiplied afterwards.
        name: the same on all ranks; by default the order of calls, or the place in the tf.function.
        process_set: the ranks that take part; all by default.
        ignore_name_scope: accepted as in Horovod; not used.

    Returns:
        A tensor of the same shape and dtype. For IndexedSlices the rows of all ranks, by rank, with the dense_shape of
        this rank; averages of integers are floating-point there.

    Raises:
        ValueError: arguments are wrong, or an operation of the same name is in flight; also a
            tf.errors.InvalidArgumentError.
        HorovodInternalError: ranks disagree, also a tf.errors.FailedPreconditionError, or one is lost. Inside a
            tf.function see horovod_errors().
    """
    del device_dense, device_sparse, ignore_name_scope
    scales = (prescale_factor, postscale_factor)
    return _combined([tensor], compression, reduce_op_of(average, op), scales, name, process_set)[0]


@public
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces several tensors, dense ones and IndexedSlices, that become ready together; see allreduce().

    The dense tensors are sent as one group, the slices as two.

    Returns:
        A list in the order of `tensors`.
    """
    del device_dense, device_sparse, ignore_name_scope
    scales = (prescale_factor, postscale_factor)
    return _combined(tensors, compression, reduce_op_of(average, op), scales, name, process_set)


def _combined(
    values: Sequence[Any],
    compression: Any,
    op: ReduceOp,
    scales: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[Any]:
    require(isinstance(values, (list, tuple)), f"expected a list of tensors, not {type(values).__name__}")
    results = list(values)
    slices = [i for i, value in enumerate(values) if isinstance(value, tf.IndexedSlices)]
    dense = [i for i in range(len(values)) if i not in slices]
    for places, combine in (
        (dense, lambda given: _allreduce(given, compression, op, scales, name, process_set)),
        (slices, lambda given: _join_slices(given, op, scales, name, process_set)),
    ):
        for i, result in zip(places, combine([values[i] for i in places]), strict=True):
            results[i] = result
    return results


def _allreduce(
    values: Sequence[Any],
    compression: Any,
    op: ReduceOp,
    scales: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    given = to_tensors(values)
    at = group_attributes(process_set)
    if not given:
        return []
    tensors, contexts = _compressed(compression, given)
    names = names_for("allreduce", name, len(tensors))
    reduced = call("sirtaki_allreduce", tensors, tensor_names=names, **at, **reduce_attributes(op, scales))
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts, strict=True)]


def _join_slices(
    slices: Sequence[tf.IndexedSlices],
    op: ReduceOp,
    scales: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[tf.IndexedSlices]:
    if not slices:
        return []
    if op not in (Average, Sum):
        raise errors.UnsupportedError(f"op is {op.name}; IndexedSlices can be averaged or summed")
    factor = scales[0] * scales[1]
    for one in slices:
        whole = one.values.dtype.is_floating or factor == 1
        require(whole, f"IndexedSlices of {one.values.dtype.name} can be summed and averaged, not scaled")
    names = (None, None) if name is None else (f"{name}.values", f"{name}.indices")
    values = _gather([one.values for one in slices], names[0], process_set)
    indices = _gather([one.indices for one in slices], names[1], process_set)
    if op == Average:
        values = [value / tf.cast(process_set.size(), value.dtype) for value in values]
    if factor != 1:
        values = [value * tf.cast(factor, value.dtype) for value in values]
    parts = zip(values, indices, slices, strict=True)
    return [tf.IndexedSlices(value, index, one.dense_shape) for value, index, one in parts]


# ---- allgather ----


@public
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns the tensors of all ranks, concatenated along dimension 0 in rank order.

    The gradient is this rank's rows of the average of all gradients.

    Args:
        tensor: at least one dimension. Dimension 0 may differ between ranks (and be 0), the others and the dtype may
            not.
        name: see allreduce().
        ignore_name_scope: accepted as in Horovod; not used.
        process_set: see allreduce().

    Raises:
        ValueError: `tensor` is a scalar, or another argument is wrong on this rank.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    del ignore_name_scope
    return _gather([tensor], name, process_set)[0]


@public
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gathers several tensors that become ready together; see allgather()."""
    del ignore_name_scope
    return _gather(tensors, name, process_set)


def _gather(values: Sequence[Any], name: str | None, process_set: ProcessSet) -> list[tf.Tensor]:
    tensors = to_tensors(values)
    at = group_attributes(process_set)
    if not tensors:
        return []
    for tensor in tensors:
        need_dimension(tensor, "allgather")
    return list(call("sirtaki_allgather", tensors, tensor_names=names_for("allgather", name, len(tensors)), **at))


def need_dimension(tensor: tf.Tensor, what: str) -> None:
    """Raises ValueError for a scalar."""
    require(tensor.shape.rank != 0, f"{what} of a scalar: it needs at least one dimension; reshape it to [1]")


# ---- broadcast ----


@public
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns the tensor of `root_rank` on all ranks.

    The gradient is the average of all gradients on the root, and zeros elsewhere.

    Args:
        tensor: the same shape and dtype on all ranks.
        root_rank: a rank of the job.
        name: see allreduce().
        ignore_name_scope: accepted as in Horovod; not used.
        process_set: see allreduce().

    Raises:
        ValueError: `root_rank` is no rank, or another argument is wrong on this rank.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    del ignore_name_scope
    return broadcast_all([tensor], root_rank, name, process_set)[0]


def broadcast_all(values: Sequence[Any], root_rank: int, name: str | None, process_set: ProcessSet) -> list[tf.Tensor]:
    """Broadcasts several tensors that become ready together; see broadcast()."""
    tensors = to_tensors(values)
    at = group_attributes(process_set)
    root = check_root(root_rank, "broadcast", name)
    if not tensors:
        return []
    names = names_for("broadcast", name, len(tensors))
    return list(call("sirtaki_broadcast", tensors, tensor_names=names, root=root, **at))


# ---- alltoall ----


@public
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends part r of dimension 0 to rank r and concatenates the parts received, in rank order.

    Args:
        tensor: at least one dimension.
        splits: rows for each rank: a list or tensor of size() integers whose sum is dimension 0; None: equal parts.
        name: see allreduce().
        ignore_name_scope: accepted as in Horovod; not used.
        process_set: see allreduce().

    Returns:
        The concatenated tensor; with splits, a pair of that and the int32 tensor of rows received from each rank.
    """
    del ignore_name_scope
    at = group_attributes(process_set)
    sent = tf.convert_to_tensor(tensor)
    need_dimension(sent, "alltoall")
    rows = tf.zeros([0], tf.int64) if splits is None else tf.cast(tf.convert_to_tensor(splits), tf.int64)
    known = rows.shape.num_elements()
    if splits is not None and known is not None:
        require(known == process_set.size(), f"splits has {known} numbers for {process_set.size()} ranks")
    output, received = call("sirtaki_alltoall", sent, rows, tensor_names=names_for("alltoall", name, 1), **at)
    return output if splits is None else (output, received)


# ---- reducescatter ----


@public
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over all ranks and returns this rank's block of dimension 0.

    If size() does not divide dimension 0, the first ranks get one row more. The gradient is that of all blocks,
    concatenated: unchanged for Average, times the number of ranks for Sum, and times the factors.

    Args:
        tensor: at least one dimension, the same shape and dtype on all ranks.
        device_dense: accepted as in Horovod; not used.
        compression: casts before sending and back afterwards.
        op: Average (default), Sum, Min, Max or Product.
        name: see allreduce().
        process_set: see allreduce().
        ignore_name_scope: accepted as in Horovod; not used.
        prescale_factor: multiplied before the reduction.
        postscale_factor: multiplied afterwards.

    Raises:
        ValueError: `tensor` is a scalar, or another argument is wrong on this rank.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    del device_dense, ignore_name_scope
    scales = (prescale_factor, postscale_factor)
    return _scatter([tensor], compression, check_reduce_op(op), scales, name, process_set)[0]


@public
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Reduces and scatters several tensors that become ready together; see reducescatter()."""
    del device_dense
    scales = (prescale_factor, postscale_factor)
    return _scatter(tensors, compression, check_reduce_op(op), scales, name, process_set)


def _scatter(
    values: Sequence[Any],
    compression: Any,
    op: ReduceOp,
    scales: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    given = to_tensors(values)
    at = group_attributes(process_set)
    if not given:
        return []
    for tensor in given:
        need_dimension(tensor, "reducescatter")
    tensors, contexts = _compressed(compression, given)
    names = names_for("reducescatter", name, len(tensors))
    blocks = call("sirtaki_reducescatter", tensors, tensor_names=names, **at, **reduce_attributes(op, scales))
    return [compression.decompress(tensor, context) for tensor, context in zip(blocks, contexts, strict=True)]


# ---- the rest ----


@public
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of `process_set` have called it; in a tf.function operations with state wait for it."""
    call("sirtaki_barrier", tensor_names=names_for("barrier", None, 1), **group_attributes(process_set))


def join() -> int:
    """Waits for the ranks with more batches. Call it after the last batch, on every rank, outside tf.function.

    A joined rank contributes zeros to the steps of a DistributedOptimizer or DistributedGradientTape of the others;
    averages still divide by size(). Its own variables do not change, so update them afterwards:

        last = hvd.join()
        hvd.broadcast_variables(model.variables, root_rank=last)

    Until all ranks have joined, a joined rank also takes part in named operations: with zeros in allreduce() and
    reducescatter(), without rows in allgather() and alltoall(), and barrier() does not wait for it. A broadcast() from
    it, and Min, Max and Product, raise HorovodInternalError on the others; under --horovod, as in Horovod, so does
    every operation but allreduce() and barrier().

    Returns:
        The rank that joined last. It has made every step.

    Raises:
        UnsupportedError: inside a tf.function; with local updates, which need the same number of steps on all ranks.
    """
    if not tf.executing_eagerly():
        raise errors.UnsupportedError("join() inside a tf.function; call it outside")
    check_join()
    return _core.join()
