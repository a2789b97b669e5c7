"""States of variables, without their framework: those of TensorFlow and of Keras."""

from __future__ import annotations

from typing import Any

from sirtaki import errors
from sirtaki.elastic.state import ObjectState


class VariablesState(ObjectState):
    """State of variables with a method assign(), and attributes. Derived classes find, copy and broadcast variables.

    Args:
        **attributes: picklable values, which become attributes.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._save_variables()

    def save(self) -> None:
        """Copies the state in memory."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Goes back to the last save()."""
        for variable, value in zip(self._variables(), self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Makes the state that of rank 0 on all ranks, and saves it. Collective."""
        self._broadcast_variables()
        super().sync()
        self._save_variables()

    def _save_variables(self) -> None:
        self._values = [self._value_of(variable) for variable in self._variables()]

    def _variables(self) -> list[Any]:
        raise NotImplementedError

    def _value_of(self, variable: Any) -> Any:
        """Returns a copy of the value, as an array of numpy."""
        raise NotImplementedError

    def _broadcast_variables(self) -> None:
        """Overwrites the variables with those of rank 0. Collective."""
        raise NotImplementedError


def require_built(model: Any) -> None:
    """Raises InvalidArgumentError if a Keras model has no weights yet, of which a state could be made."""
    errors.require(bool(model.built), "the model has no weights yet; call model.build(input_shape) first")


def optimizer_of(model: Any, optimizer: Any) -> Any:
    """Returns the optimizer that is given, or else that of the Keras model, or None."""
    return optimizer if optimizer is not None else getattr(model, "optimizer", None)
