"""Broadcasts of variables, exchange of objects, and facts about ranks as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from sirtaki import basics, objects
from sirtaki._local_sgd import models_broadcast
from sirtaki.errors import require
from sirtaki.process_sets import ProcessSet, get_process_set_ids_and_ranks, global_process_set
from sirtaki.tensorflow._op_calls import public
from sirtaki.tensorflow.ops import broadcast_all

__all__ = [
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]

#: Sent as bytes: states of random generators, complex weights.
_AS_BYTES = (tf.uint32, tf.uint64, tf.complex64, tf.complex128)


@public
def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Overwrites variables with those of `root_rank`.

    Args:
        variables: tf.Variable or Keras variables, in the same order with the same shapes on all ranks.
        root_rank: the rank whose values all ranks get.
        process_set: the ranks that take part; all by default.
        inplace: accepted as in Horovod; not used.

    Returns:
        None in eager code. In graphs an operation, which a session has to run; a tf.function runs it by itself.

    Raises:
        ValueError: `variables` is no list of variables.
        HorovodInternalError: ranks disagree about a variable.
    """
    del inplace
    # A tf.function runs several calls at once, with the names of their places in it.
    done = broadcast_(variables, root_rank, "variables" if tf.executing_eagerly() else None, process_set)
    models_broadcast()
    return None if tf.executing_eagerly() else tf.group(*done)


@public
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrites variables as broadcast_variables() does, and returns the new values as tensors.

    Args:
        variables: see broadcast_variables().
        root_rank: see broadcast_variables().
        name: the same on all ranks; by default the order of calls, or the place in the tf.function.
        process_set: see broadcast_variables().
    """
    usable = isinstance(variables, (list, tuple)) and all(hasattr(v, "assign") for v in variables)
    require(usable, "expected a list of variables, such as model.variables")
    values = [_sendable(tf.convert_to_tensor(v)) for v in variables]
    received = broadcast_all(values, root_rank, name, process_set)
    results = []
    for variable, value in zip(variables, received, strict=True):
        dtype = tf.as_dtype(variable.dtype).base_dtype
        whole = tf.bitcast(value, dtype) if dtype in _AS_BYTES else value
        done = variable.assign(whole)
        # A session runs the requested operations and their inputs only.
        with tf.control_dependencies([] if done is None or tf.executing_eagerly() else [done]):
            results.append(tf.identity(whole))
    return results


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns an operation that overwrites all global variables of a graph of TensorFlow 1 by those of `root_rank`.

    Raises:
        RuntimeError: in eager code, which has no such variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() is for graphs of TensorFlow 1, and eager code has no global variables; use "
            "broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns a picklable object of `root_rank` on all ranks; at once, even while a graph is being built.

    Args:
        obj: the object; read on the root alone.
        root_rank: the rank whose object all ranks get.
        session: accepted as in Horovod; not used.
        name: the same on all ranks; None: the order of calls decides.
        process_set: the ranks that take part; all by default.
    """
    del session
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Returns broadcast_object() as a function of the object; see there for the arguments."""

    def send(obj: Any = None) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return send


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the picklable objects of all ranks on every rank, in rank order; at once.

    Args:
        obj: the object of this rank; types and sizes may differ between ranks.
        session: accepted as in Horovod; not used.
        name: the same on all ranks; None: the order of calls decides.
        process_set: the ranks that take part; all by default.
    """
    del session
    return objects.allgather_object(obj, name, process_set)


def _sendable(tensor: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tensor, tf.uint8) if tensor.dtype in _AS_BYTES else tensor


def rank_op(name: str | None = None) -> tf.Tensor:
    """Returns rank() as a tensor of int32 with the name `name`."""
    return tf.constant(basics.rank(), name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Returns local_rank() as a tensor of int32 with the name `name`."""
    return tf.constant(basics.local_rank(), name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns the number of ranks in the set `process_set_id`, as a tensor of int32 with the name `name`.

    Raises:
        InvalidArgumentError: no set has the id.
    """
    sets = get_process_set_ids_and_ranks()
    require(process_set_id in sets, f"there is no process set with the id {process_set_id!r}")
    return tf.constant(len(sets[process_set_id]), name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns 1 if this rank is in the set `process_set_id`, else 0, as a tensor of int32 with the name `name`.

    Raises:
        InvalidArgumentError: no set has the id.
    """
    sets = get_process_set_ids_and_ranks()
    require(process_set_id in sets, f"there is no process set with the id {process_set_id!r}")
    return tf.constant(int(basics.rank() in sets[process_set_id]), name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Returns local_size() as a tensor of int32 with the name `name`."""
    return tf.constant(basics.local_size(), name=name)
