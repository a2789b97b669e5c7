"""States of variables, with variables and models that only pretend: no framework is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

import sirtaki
from sirtaki.elastic._transferred_variables import TransferOfVariables
from sirtaki.elastic.variables import KerasModelState, VariablesState


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    """Makes this process the only rank of a job, which lacks all variables."""
    sirtaki.init()
    with mock.patch.object(TransferOfVariables, "deliver", lambda _, variables, wanted: [True] * len(variables)):
        yield
    sirtaki.shutdown()


class Variable:
    """A value with assign()."""

    def __init__(self, value: float) -> None:
        self.value = value

    def assign(self, value: float) -> None:
        """Sets the value."""
        self.value = value


class Pretended(VariablesState):
    """State of such variables; counts the copies of them."""

    copies = 0

    def _value_of(self, variable: Any) -> Any:
        self.copies += 1
        return variable.value

    def _broadcast(self, variables: list[Any]) -> None:
        for variable in variables:
            variable.assign(10.0)


class Variables(Pretended):
    """State of a list of variables."""

    def __init__(self, variables: list[Variable], **attributes: Any) -> None:
        self.variables = variables
        super().__init__(**attributes)

    def _variables(self) -> list[Any]:
        return self.variables


class Counted:
    """Counts its copies."""

    copies = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Counted:
        Counted.copies += 1
        return self


def test_a_save_copies_each_value_once() -> None:
    state = Variables([Variable(1.0)], large=Counted())
    assert (state.copies, Counted.copies) == (1, 1)
    state.save()
    assert (state.copies, Counted.copies) == (2, 2)
    state.sync()
    assert (state.copies, Counted.copies) == (3, 3)


def test_variables_go_back_to_the_last_save() -> None:
    variable = Variable(1.0)
    state = Variables([variable], step=0)
    variable.assign(2.0)
    state.step = 1
    state.restore()
    assert (variable.value, state.step) == (1.0, 0)
    state.sync()
    variable.assign(3.0)
    state.restore()
    assert variable.value == 10.0


class Optimizer:
    """An optimizer of Keras 3: it has the variable `iterations`, and a momentum for each weight once it is built."""

    def __init__(self) -> None:
        self.built = False
        self.variables = [Variable(0.0)]

    def build(self, weights: list[Variable]) -> None:
        """Makes the momenta."""
        assert not self.built
        self.built = True
        self.variables = [*self.variables, *(Variable(0.0) for _ in weights)]


class OptimizerOfKeras2:
    """A legacy optimizer of Keras 2, whose variables are a method."""

    def __init__(self) -> None:
        self.made = [Variable(0.0)]

    def variables(self) -> list[Variable]:
        """Returns all variables."""
        return list(self.made)

    def _create_all_weights(self, weights: list[Variable]) -> None:
        self.made += [Variable(0.0) for _ in weights]


class Model:
    """A Keras model with one weight."""

    def __init__(self, optimizer: Any = None, built: bool = True) -> None:
        self.optimizer, self.built = optimizer, built
        self.variables = self.trainable_variables = [Variable(1.0)]


class OfModel(KerasModelState, Pretended):
    """State of a model."""


@pytest.mark.parametrize("kind", [Optimizer, OptimizerOfKeras2])
@pytest.mark.parametrize("of_model", [False, True])
def test_momenta_of_the_first_step_belong_to_the_state(kind: type[Any], of_model: bool) -> None:
    optimizer = kind()
    state = OfModel(Model(optimizer)) if of_model else OfModel(Model(), optimizer)
    assert state.optimizer is optimizer
    found = state._variables()
    assert len(found) == 3
    for variable in found:
        variable.assign(5.0)
    state.restore()
    assert [variable.value for variable in found] == [1.0, 0.0, 0.0]
    state.sync()
    assert [variable.value for variable in found] == [10.0] * 3


def test_variables_that_come_after_a_save_keep_their_values() -> None:
    optimizer = OptimizerOfKeras2()
    state = OfModel(Model(optimizer))
    late = Variable(7.0)
    optimizer.made.append(late)
    state.restore()
    assert late.value == 7.0
    state.commit()
    late.assign(8.0)
    state.restore()
    assert late.value == 7.0


def test_a_model_needs_weights_and_no_optimizer() -> None:
    assert len(OfModel(Model())._variables()) == 1
    with pytest.raises(ValueError, match="no weights yet"):
        OfModel(Model(built=False))


def test_a_snapshot_has_what_was_saved_last_and_fits_its_variables_alone() -> None:
    state = Variables([Variable(1.0), Variable(2.0)], step=1)
    state.variables[0].value = 3.0
    resumed = Variables([Variable(0.0), Variable(0.0)], step=0)
    resumed._take_over(state._hand_over())
    assert ([variable.value for variable in resumed.variables], resumed.step) == ([1.0, 2.0], 1)
    with pytest.raises(ValueError, match="it has 2 variables, and the program has 1"):
        Variables([Variable(0.0)], step=0)._take_over(state._hand_over())
    with pytest.raises(ValueError, match="it has also step"):
        Variables([Variable(0.0), Variable(0.0)])._take_over(state._hand_over())
