"""States of variables, with variables and models that only pretend: no framework is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import sirtaki
from sirtaki.elastic.variables import VariablesState


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    sirtaki.init()
    yield
    sirtaki.shutdown()


class Variable:
    """A value with assign()."""

    def __init__(self, value: float) -> None:
        self.value = value

    def assign(self, value: float) -> None:
        """Sets the value."""
        self.value = value


class Variables(VariablesState):
    """State of a list of such variables; counts the copies of them."""

    def __init__(self, variables: list[Variable], **attributes: Any) -> None:
        self.variables, self.copies = variables, 0
        super().__init__(**attributes)

    def _variables(self) -> list[Any]:
        return self.variables

    def _value_of(self, variable: Any) -> Any:
        self.copies += 1
        return variable.value

    def _broadcast_variables(self) -> None:
        for variable in self._variables():
            variable.assign(10.0)


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
