# ruff: noqa: PLR0917  (Horovod's arguments)
"""Operations on values outside of training, and loading of models."""

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
from sirtaki.ops import Adasum, Average, Max, Min, Product, ReduceOp, Submission, Sum, check_reduce_op

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
    """Reduces a value (number, array, tensor) over all ranks. Not in traced functions.

    Args:
        value: the same shape and dtype on all ranks.
        name: the same on all ranks; None: the order of calls decides.
        average: the older form of op=Average (True) or op=Sum (False).
        prescale_factor: multiplied before the reduction.
        postscale_factor: multiplied afterwards.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        compression: Compression.fp16 sends floating-point values as float16.

    Returns:
        A numpy array of the same shape and dtype.

    Raises:
        ValueError: an argument is wrong on this rank.
        HorovodInternalError: ranks disagree, or one is lost.
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
    """Returns the values of all ranks as a numpy array, concatenated along dimension 0 in rank order.

    Args:
        value: at least one dimension. Dimension 0 may differ between ranks (and be 0), the others and the dtype may
            not.
        name: the same on all ranks; None: the order of calls decides.

    Raises:
        HorovodInternalError: ranks disagree, or one is lost.
    """
    return _now(numpy_ops.allgather(_array(value), name))


def broadcast(value: Any, root_rank: int = 0, name: str | None = None) -> Array:
    """Returns the value of `root_rank` on all ranks as a numpy array.

    Args:
        value: the same shape and dtype on all ranks.
        root_rank: the rank whose value all ranks get.
        name: the same on all ranks; None: the order of calls decides.

    Raises:
        ValueError: `root_rank` is no rank.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    return _now(numpy_ops.broadcast(_array(value), root_rank, name, in_place=False))


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> Array:
    """Reduces a value over all ranks and returns this rank's block of dimension 0 as a numpy array.

    If size() does not divide dimension 0, the first ranks get one row more.

    Args:
        value: at least one dimension, the same shape and dtype on all ranks.
        name: the same on all ranks; None: the order of calls decides.
        op: Average (default), Sum, Min, Max or Product.

    Raises:
        ValueError: an argument is wrong on this rank.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    return _now(numpy_ops.reducescatter(_array(value), name, check_reduce_op(op), (1.0, 1.0)))


def barrier() -> None:
    """Returns when all ranks have called it."""
    _now(numpy_ops.barrier())


def broadcast_variables(variables: Sequence[Any], root_rank: int = 0) -> None:
    """Overwrites Keras variables with those of `root_rank`. Collective.

    Args:
        variables: Keras variables, such as model.variables, in the same order with the same shapes on all ranks.
        root_rank: the rank whose values all ranks get.

    Raises:
        HorovodInternalError: ranks disagree about a variable, or one is lost.
    """
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
    """Loads a model as keras.models.load_model() does, with a DistributedOptimizer in it.

    Args:
        filepath: a file of model.save() in the file system of this rank.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: see keras.models.load_model.
        compression: see DistributedOptimizer.
        legacy_opts: accepted as in Horovod; not used.
        local_updates: see DistributedOptimizer.
    """
    del legacy_opts
    known = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if model.optimizer is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression, local_updates=local_updates)
    return model
