"""States of variables, without their framework: those of TensorFlow and of Keras."""

from __future__ import annotations

from typing import Any

from sirtaki import errors
from sirtaki.elastic._compared_state import ComparedState
from sirtaki.elastic._compared_variables import comparison_of
from sirtaki.elastic._layout import Layout, fits, part_of, shape_of
from sirtaki.elastic._transferred_variables import TransferOfVariables
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
        for variable, value in self._values:  # not those that have come since
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Makes the state that of rank 0 on all ranks, and saves it. Collective."""
        variables = self._variables()
        transfer = TransferOfVariables(self._value_of)
        left = transfer.deliver(variables, transfer.lacking(variables, 0))
        self._broadcast([variable for variable, is_left in zip(variables, left, strict=True) if is_left])
        super().sync()
        self._save_variables()

    def _layout(self) -> Layout:
        # Names of variables may count the models that a process has made, so they are for messages alone.
        parts = {
            f"variable {i}": part_of("variable", one, f"{i} ({getattr(one, 'path', None) or getattr(one, 'name', '')})")
            for i, one in enumerate(self._variables())
        }
        return {**super()._layout(), **parts}

    def _hand_over(self) -> Any:
        return {"variables": [value for _, value in self._values], "values": super()._hand_over()}

    def _take_over(self, saved: Any) -> None:
        arrays, variables = saved["variables"], self._variables()
        count = f"it has {len(arrays)} variables, and the program has {len(variables)}"
        errors.require(len(arrays) == len(variables), count)
        for i, pair in enumerate(zip(arrays, variables, strict=True)):
            theirs, own = map(shape_of, pair)
            errors.require(fits(theirs, own), f"variable {i} has the shape {theirs} in it, and {own} in the program")
        for variable, value in zip(variables, arrays, strict=True):
            variable.assign(value)
        super()._take_over(saved["values"])

    def _save_variables(self) -> None:
        self._values = [(variable, self._value_of(variable)) for variable in self._variables()]

    def _variables(self) -> list[Any]:
        raise NotImplementedError

    def _value_of(self, variable: Any) -> Any:
        """Returns a copy of the value, as an array of numpy."""
        raise NotImplementedError

    def _broadcast(self, variables: list[Any]) -> None:
        """Overwrites variables with those of rank 0. Collective."""
        raise NotImplementedError


class KerasModelState(ComparedState, VariablesState):
    """State of a Keras model and its optimizer, and attributes. Builds the optimizer, for its momenta.

    In elastic jobs, commits compare the variables that a DistributedOptimizer keeps equal on all ranks.

    Args:
        model: a Keras model.
        optimizer: a Keras optimizer; None: that of the model.
        **attributes: picklable values, which become attributes.

    Raises:
        InvalidArgumentError: the model has no weights yet.
    """

    def __init__(self, model: Any, optimizer: Any = None, **attributes: Any) -> None:
        errors.require(bool(model.built), "the model has no weights yet; call model.build(input_shape) first")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        _build(self.optimizer, model.trainable_variables)
        self._comparison = comparison_of(self, self._part_of)
        super().__init__(**attributes)

    def sync(self) -> None:
        """Makes the state that of rank 0 on all ranks, and saves it. Collective."""
        super().sync()
        self._compare()

    def _part_of(self, variable: Any, begin: int, end: int) -> Any:
        """Returns the elements of a variable between two places in row-major order, as an array of numpy."""
        raise NotImplementedError

    def _variables(self) -> list[Any]:
        optimizer = getattr(self.optimizer, "variables", ())
        optimizer = optimizer() if callable(optimizer) else optimizer  # a method in Keras 2
        known: dict[int, Any] = {id(variable): variable for variable in [*self.model.variables, *optimizer]}
        return list(known.values())


def _build(optimizer: Any, weights: list[Any]) -> None:
    """Makes the variables of an optimizer, which otherwise come at its first step: behind the first save."""
    if getattr(optimizer, "built", False):
        return
    # Optimizers of Keras 2 do not have `built`; build() of the newer ones may be called twice.
    make = getattr(optimizer, "build", None) or getattr(optimizer, "_create_all_weights", None)
    if make is not None:
        make(weights)
