"""Starting all ranks from the same variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sirtaki import basics
from sirtaki.errors import require
from sirtaki.process_sets import ProcessSet, get_process_set_ids_and_ranks, global_process_set
from sirtaki.tensorflow._calls import public
from sirtaki.tensorflow.ops import broadcast_all

#: Travel as they lie in memory: states of random generators, complex weights.
_AS_BYTES = (tf.uint32, tf.uint64, tf.complex64, tf.complex128)


@public
def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> None:
    """Overwrites variables with those of `root_rank`.

    Args:
        variables: tf.Variable or Keras variables, in the same order with the same shapes on all ranks.
        root_rank: the rank whose values all get.
        process_set: the ranks that take part; all by default.
        inplace: accepted as in Horovod; means nothing here.

    Raises:
        ValueError: `variables` is no list of variables.
        HorovodInternalError: ranks disagree about a variable.
    """
    del inplace
    broadcast_(variables, root_rank, "variables", process_set)


@public
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """broadcast_variables() that gives the variables back."""
    usable = isinstance(variables, (list, tuple)) and all(hasattr(v, "assign") for v in variables)
    require(usable, "expected a list of variables, such as model.variables")
    values = [_sendable(tf.convert_to_tensor(v)) for v in variables]
    received = broadcast_all(values, root_rank, name, process_set)
    for variable, value in zip(variables, received, strict=True):
        dtype = tf.as_dtype(variable.dtype)
        variable.assign(tf.bitcast(value, dtype) if dtype in _AS_BYTES else value)
    return list(variables)


def _sendable(tensor: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tensor, tf.uint8) if tensor.dtype in _AS_BYTES else tensor


def rank_op(name: str | None = None) -> tf.Tensor:
    """rank() as a tensor."""
    return tf.constant(basics.rank(), name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """local_rank() as a tensor."""
    return tf.constant(basics.local_rank(), name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks in a process set, by its id, as a tensor."""
    sets = get_process_set_ids_and_ranks()
    require(process_set_id in sets, f"there is no process set with the id {process_set_id!r}")
    return tf.constant(len(sets[process_set_id]), name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """local_size() as a tensor."""
    return tf.constant(basics.local_size(), name=name)
