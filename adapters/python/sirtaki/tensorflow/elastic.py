"""Elastic training with TensorFlow: states of variables, and the loop that survives lost ranks.

The names are those of horovod.tensorflow.elastic; docs/elastic.md shows a program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from sirtaki import elastic, errors
from sirtaki.elastic.variables import VariablesState, optimizer_of, require_built
from sirtaki.tensorflow._errors import horovod_errors
from sirtaki.tensorflow.functions import broadcast_variables

Result = TypeVar("Result")


class TensorFlowState(VariablesState):
    """Variables and attributes of a training, in eager code.

    Args:
        variables: tf.Variable or Keras variables.
        session: accepted as in Horovod; must be None.
        **attributes: picklable values, which become attributes.

    Raises:
        UnsupportedError: outside of eager code, or with a session.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **attributes: Any) -> None:
        if session is not None or not tf.executing_eagerly():
            raise errors.UnsupportedError("elastic.TensorFlowState is for eager code; save checkpoints instead")
        errors.require(variables is not None, "variables are not given; eager code has no global ones")
        self.variables = list(variables or ())
        super().__init__(**attributes)

    def _variables(self) -> list[Any]:
        return self.variables

    def _value_of(self, variable: Any) -> Any:
        return np.array(tf.convert_to_tensor(variable))

    def _broadcast_variables(self) -> None:
        broadcast_variables(self.variables, root_rank=0)


class TensorFlowKerasState(TensorFlowState):
    """State of a Keras model and its optimizer, which must be built, and attributes.

    Args:
        model: a Keras model.
        optimizer: a Keras optimizer; None: that of the model.
        backend: accepted as in Horovod; not used.
        **attributes: picklable values, which become attributes.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **attributes: Any) -> None:
        del backend
        require_built(model)
        self.model = model
        self.optimizer = optimizer_of(model, optimizer)
        super().__init__([*model.variables, *_variables_of(self.optimizer)], **attributes)


def _variables_of(optimizer: Any) -> Sequence[Any]:
    found = getattr(optimizer, "variables", ())
    return found() if callable(found) else found  # the legacy optimizers of Keras 2 have a method


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a function that trains on when ranks are lost, join or leave; see sirtaki.elastic.run().

    Args:
        func: the training function; its first argument is the training's state.
    """

    @functools.wraps(func)
    def converted(*args: Any, **kwargs: Any) -> Result:
        with horovod_errors():  # a tf.function raises errors of TensorFlow
            return func(*args, **kwargs)

    return elastic.run(converted)


__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]
