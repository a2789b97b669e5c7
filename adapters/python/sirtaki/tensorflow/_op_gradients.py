"""Gradients of the operations, with the factors of Horovod 0.28.1, so that a program keeps its learning rates.

P is the number of participating ranks. An allreduce combines gradients as it combines values. allgather and broadcast
average the gradients of the ranks, so their size does not grow with P: each is 1/P of the derivative of the sum of all
losses. reducescatter gives every rank the concatenated gradients of all blocks, unchanged for Average and times P for
Sum: P times that derivative. Scales before and after multiply. alltoall sends every row back.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki import basics, errors
from sirtaki.ops import ReduceOp
from sirtaki.process_sets import ProcessSet
from sirtaki.tensorflow._op_calls import call, count_in_graph, reduce_attributes

_ONE = (1.0, 1.0)


def _where(op: Any) -> dict[str, Any]:
    return {"ranks": op.get_attr("ranks").decode(), "priority": op.get_attr("priority")}


def _set(op: Any) -> ProcessSet:
    ranks = op.get_attr("ranks").decode()
    return ProcessSet([int(rank) for rank in ranks.split(",")]) if ranks else ProcessSet()


def _names(op: Any, suffix: str = "gradient") -> str:
    names = op.get_attr("tensor_names").decode()
    if not names:
        return ""
    # One operation may have several gradients in a function.
    nth = count_in_graph(f"{names}.{suffix}")
    suffix = suffix if nth == 0 else f"{suffix}.{nth}"
    return "\n".join(f"{name}.{suffix}" for name in names.split("\n"))


def _scales(op: Any) -> tuple[float, float]:
    return float(op.get_attr("prescale")), float(op.get_attr("postscale"))


def _linear(op: Any) -> ReduceOp:
    reduce_op = ReduceOp(op.get_attr("reduce_op"))
    if reduce_op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        name = reduce_op.name.lower()
        raise errors.UnsupportedError(f"there is no gradient through {name}; only through Average and Sum")
    return reduce_op


def _dense(op: Any, grads: tuple[Any, ...]) -> list[tf.Tensor]:
    pairs = zip(grads, op.outputs, strict=True)
    return [tf.zeros_like(out) if grad is None else tf.convert_to_tensor(grad) for grad, out in pairs]


def _average(op: Any, grads: tuple[Any, ...]) -> list[tf.Tensor]:
    work = {"tensor_names": _names(op), **_where(op), **reduce_attributes(ReduceOp.AVERAGE, _ONE)}
    return list(call("sirtaki_allreduce", _dense(op, grads), **work))


@tf.RegisterGradient("SirtakiAllreduce")
def _allreduce(op: Any, *grads: Any) -> list[tf.Tensor]:
    """Returns the same reduction of the gradients."""
    work = {"tensor_names": _names(op), **_where(op), **reduce_attributes(_linear(op), _scales(op))}
    return list(call("sirtaki_allreduce", _dense(op, grads), **work))


@tf.RegisterGradient("SirtakiAllgather")
def _allgather(op: Any, *grads: Any) -> list[tf.Tensor]:
    """Returns the rows of this rank of the averaged gradients."""
    means = _average(op, grads)
    rows = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in op.inputs])
    name = _names(op, "rows").split("\n")[0]
    counts = call("sirtaki_allgather", [rows[tf.newaxis]], tensor_names=name, **_where(op))[0]
    begins = tf.reduce_sum(counts[: _set(op).rank()], axis=0)
    return [mean[begins[i] : begins[i] + rows[i]] for i, mean in enumerate(means)]


@tf.RegisterGradient("SirtakiBroadcast")
def _broadcast(op: Any, *grads: Any) -> list[tf.Tensor]:
    """Returns the averaged gradients on the root, zeros elsewhere."""
    means = _average(op, grads)
    if basics.rank() == op.get_attr("root"):
        return means
    # A session runs only the inputs of its results, but the other ranks wait for the average.
    with tf.control_dependencies([] if tf.executing_eagerly() else means):
        return [tf.zeros_like(mean) for mean in means]


@tf.RegisterGradient("SirtakiAlltoall")
def _alltoall(op: Any, *grads: Any) -> list[Any]:
    """Sends every row of the gradient back to the rank that the row came from."""
    rows, received = op.outputs
    grad = tf.zeros_like(rows) if grads[0] is None else tf.convert_to_tensor(grads[0])
    work = {"tensor_names": _names(op), **_where(op)}
    return [call("sirtaki_alltoall", grad, tf.cast(received, tf.int64), **work)[0], None]


@tf.RegisterGradient("SirtakiReducescatter")
def _reducescatter(op: Any, *grads: Any) -> list[tf.Tensor]:
    """Returns the gradients of all blocks, concatenated; times the number of ranks for Sum."""
    before, after = _scales(op)
    factor = before * after * (_set(op).size() if _linear(op) == ReduceOp.SUM else 1)
    joined = call("sirtaki_allgather", _dense(op, grads), tensor_names=_names(op), **_where(op))
    return [tensor if factor == 1 else tensor * tf.cast(factor, tensor.dtype) for tensor in joined]


tf.no_gradient("SirtakiBarrier")
tf.no_gradient("SirtakiStepNumber")


@tf.RegisterGradient("SirtakiReady")
def _ready(op: Any, *grads: Any) -> Any:
    """Refuses gradients of combined gradients, which would need a plan of their own."""
    del op, grads
    raise errors.UnsupportedError(
        "there is no gradient through gradients that DistributedGradientTape or DistributedOptimizer has combined; "
        "combine them with allreduce(), which has one"
    )


tf.RegisterGradient("SirtakiFinish")(_ready)
