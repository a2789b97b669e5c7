"""Elastic training with TensorFlow: states of variables, and the loop that survives lost ranks.

The names are those of horovod.tensorflow.elastic; docs/elastic.md shows a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from sirtaki import errors
from sirtaki.elastic.loop import run_guarded
from sirtaki.elastic.variables import KerasModelState, VariablesState
from sirtaki.tensorflow._errors import horovod_errors
from sirtaki.tensorflow.functions import broadcast_variables

Result = TypeVar("Result")


class _StateInTensorFlow(VariablesState):
    """State of variables of TensorFlow or Keras, in eager code."""

    def _value_of(self, variable: Any) -> Any:
        return np.array(tf.convert_to_tensor(variable))

    def _broadcast(self, variables: list[Any]) -> None:
        broadcast_variables(variables, root_rank=0)


class TensorFlowState(_StateInTensorFlow):
    """Variables and attributes of a training, in eager code.

    Args:
        variables: tf.Variable or Keras variables.
        session: accepted as in Horovod; must be None.
        **attributes: picklable values, which become attributes.

    Raises:
        UnsupportedError: outside of eager code, or with a session.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **attributes: Any) -> None:
        _require_eager(session)
        errors.require(variables is not None, "variables are not given; eager code has no global ones")
        self.variables = list(variables or ())
        super().__init__(**attributes)

    def _variables(self) -> list[Any]:
        return self.variables


class TensorFlowKerasState(KerasModelState, _StateInTensorFlow):
    """State of a Keras model, which must be built, its optimizer and attributes, in eager code.

    Args:
        model: a Keras model.
        optimizer: a Keras optimizer; None: that of the model. Built here if it is not.
        backend: accepted as in Horovod; not used.
        **attributes: picklable values, which become attributes.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **attributes: Any) -> None:
        del backend
        _require_eager()
        super().__init__(model, optimizer, **attributes)

    def _part_of(self, variable: Any, begin: int, end: int) -> Any:
        return np.asarray(tf.reshape(tf.convert_to_tensor(variable), [-1])[begin:end])


def _require_eager(session: Any = None) -> None:
    if session is not None or not tf.executing_eagerly():
        raise errors.UnsupportedError("elastic states of TensorFlow are for eager code; save checkpoints instead")


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a function that trains on when ranks are lost, join or leave; see sirtaki.elastic.run().

    Args:
        func: the training function; its first argument is the training's state.
    """

    return run_guarded(func, horovod_errors)  # a tf.function raises errors of TensorFlow


__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]
