# ruff: noqa: PLR0917  (Horovod's arguments)
"""Values over all ranks outside of training, and loading models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from sirtaki._numpy import Array, numpy_ops
from sirtaki.compression import Choice, NoneCompressor
from sirtaki.errors import require
from sirtaki.keras._backend import backend
from sirtaki.keras.optimizer import DistributedOptimizer
from sirtaki.local_updates import LocalChoice
from sirtaki.ops import ReduceOp, Submission, check_reduce_op

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_variables",
    "load_model",
    "reducescatter",
]

Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


def _array(value: Any) -> Array:
    return np.asarray(keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value)


def _now(submission: Submission) -> Any:
    result: Any = numpy_ops.start_one(submission).wait()
    return result


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = NoneCompressor,
) -> Array:
    """Combines a value (number, array, tensor) over all ranks; a numpy array. Outside of traced functions.

    `compression` may be Compression.fp16: floating-point values travel as float16.
    """
    require(average is None or op is None, "average and op are both given; give op alone")
    if average is not None:
        op = Average if average else Sum
    chosen = Average if op is None else check_reduce_op(op)
    scales = (prescale_factor, postscale_factor)
    halves = getattr(compression, "codec", None) == "fp16"
    require(
        halves or compression is NoneCompressor,
        f"compression is {compression!r}; values take Compression.none and Compression.fp16",
    )
    array = _array(value)
    halves = halves and array.dtype.kind == "f"
    sent = array.astype(np.float16) if halves else array
    result = _now(numpy_ops.allreduce(sent, name, chosen, scales, in_place=False))
    return result.astype(array.dtype) if halves else result


def allgather(value: Any, name: str | None = None) -> Array:
    """Joins values of all ranks along dimension 0."""
    return _now(numpy_ops.allgather(_array(value), name))


def broadcast(value: Any, root_rank: int = 0, name: str | None = None) -> Array:
    """The value of `root_rank`, on all ranks; the same shape and dtype everywhere."""
    return _now(numpy_ops.broadcast(_array(value), root_rank, name, in_place=False))


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> Array:
    """Combines a value over all ranks and keeps this rank's block of dimension 0."""
    return _now(numpy_ops.reducescatter(_array(value), name, check_reduce_op(op), (1.0, 1.0)))


def barrier() -> None:
    """Returns when all ranks have called it."""
    _now(numpy_ops.barrier())


def broadcast_variables(variables: Sequence[Any], root_rank: int = 0) -> None:
    """Overwrites Keras variables, such as model.variables, with those of `root_rank`. Collective."""
    backend.broadcast(variables, root_rank)


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Choice = NoneCompressor,
    legacy_opts: bool = False,
    *,
    local_updates: LocalChoice = None,
) -> Any:
    """keras.models.load_model() with a DistributedOptimizer in the model.

    Args:
        filepath: a file of model.save(), of this rank's file system.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as keras.models.load_model's.
        compression: as DistributedOptimizer's.
        legacy_opts: accepted as in Horovod; means nothing here.
        local_updates: as DistributedOptimizer's.
    """
    del legacy_opts
    known = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if model.optimizer is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression, local_updates=local_updates)
    return model
