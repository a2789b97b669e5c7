"""The part of horovod.tensorflow.elastic that works with a fixed number of ranks: states in memory.

A state keeps variables and numbers: sync() makes them equal on all ranks, commit() saves them, restore() goes back.
run() raises an error that names the alternative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from sirtaki import errors
from sirtaki.tensorflow.functions import broadcast_object, broadcast_variables

_INSTEAD = (
    "only sirtaki.torch.elastic goes on without lost ranks yet; save checkpoints and start the job again with the "
    "ranks there are"
)


class TensorFlowState:
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
        self._names = list(attributes)
        self._values: list[Any] = []
        self._saved: dict[str, Any] = {}
        for name, value in attributes.items():
            setattr(self, name, value)
        self.save()

    def save(self) -> None:
        """Saves the state in memory."""
        self._values = [np.array(tf.convert_to_tensor(variable)) for variable in self.variables]
        self._saved = {name: getattr(self, name) for name in self._names}

    def commit(self) -> None:
        """Saves the state as save() does."""
        self.save()

    def restore(self) -> None:
        """Goes back to the last saved state."""
        for variable, value in zip(self.variables, self._values, strict=True):
            variable.assign(value)
        for name, value in self._saved.items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Makes the state that of rank 0 on all ranks, and saves it. Collective."""
        broadcast_variables(self.variables, root_rank=0)
        for name, value in broadcast_object({name: getattr(self, name) for name in self._names}).items():
            setattr(self, name, value)
        self.save()


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
        errors.require(bool(model.built), "the model has no weights yet; call model.build(input_shape) first")
        chosen = optimizer or model.optimizer
        super().__init__([*model.variables, *(chosen.variables if chosen is not None else ())], **attributes)


def run(func: Any) -> NoReturn:
    """Raises UnsupportedError, which names the alternative, for any `func`."""
    del func
    raise errors.UnsupportedError(f"elastic.run: {_INSTEAD}")


__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]
