"""Comparison of the states of Keras models, with variables and optimizers that only pretend: no framework is needed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from thread_ranks import LIMIT_SECONDS, Exchange

import sirtaki
from sirtaki import basics
from sirtaki._rank_local_variables import RankLocalVariables
from sirtaki.elastic._compared_variables import ComparedVariable, KerasTensors
from sirtaki.elastic._comparison import Comparison, Pass
from sirtaki.process_sets import ProcessSet, global_process_set


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """Makes this process the only rank of a job, in elastic.run()."""
    sirtaki.init()
    with basics.losses_raise():
        yield
    sirtaki.shutdown()


#: Places of compared variables of an Optimizer.
SLOTS = (0, 2, 3, 4)


class Variable:
    """A variable of Keras."""

    def __init__(self, value: Any) -> None:
        self.value = np.array(value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self.value.shape

    def assign(self, value: Any) -> None:
        """Sets the value."""
        assert (value.shape, value.dtype) == (self.value.shape, self.value.dtype)
        self.value = value

    def flip(self) -> None:
        """Flips a bit of the last element."""
        values = bytearray(self.value.tobytes())
        values[-1] ^= 4
        self.value = np.frombuffer(bytes(values), self.value.dtype).reshape(self.value.shape)


def read(variable: Variable, begin: int, end: int) -> Any:
    return variable.value.reshape(-1)[begin:end]


class Optimizer:
    """A DistributedOptimizer of Keras with momenta, which accumulates gradients."""

    def __init__(self, weights: list[Variable], **how: Any) -> None:
        choices = SimpleNamespace(process_set=how.get("process_set", global_process_set))
        self._sirtaki = SimpleNamespace(choices=choices, config=how.get("local_updates"), own=RankLocalVariables())
        self._trainable_variables = list(weights)
        self._learning_rate = Variable(0.1)
        self._accumulated_gradients = [Variable(np.zeros(2))]
        momenta = [Variable(np.zeros_like(weight.value)) for weight in weights]
        self.variables = [Variable(np.int64(3)), self._learning_rate, *momenta, *self._accumulated_gradients]


class Rank:
    """A model with its optimizer, and their comparison."""

    def __init__(self, exchange: Exchange) -> None:
        self.trained = [Variable(np.arange(9000.0).reshape(90, 100)), Variable(np.float32(2)), Variable([True, False])]
        self.means = Variable(np.zeros(3))
        self.model = SimpleNamespace(trainable_variables=self.trained, variables=[*self.trained, self.means])
        self.optimizer: Any = Optimizer(self.trained)
        self.seconds = 0.0
        self.comparison = Comparison(KerasTensors(self, read), exchange, self.clock)

    def compared(self) -> list[Variable]:
        """Returns the variables that are compared."""
        return [*self.trained, *(self.optimizer.variables[place] for place in SLOTS)]

    def clock(self) -> float:
        self.seconds += 0.001
        return self.seconds

    def commit(self) -> bool:
        self.seconds += 0.5
        self.comparison.offer()
        return self.comparison.meet(0)[1]


class Ranks:
    """Three ranks of a job, each in a thread when they commit."""

    def __init__(self, how: str = "heal") -> None:
        self.exchange = Exchange(3)
        self.ranks = [Rank(self.exchange) for _ in range(3)]
        for rank in self.ranks:
            rank.comparison.begin(how)

    def commit(self) -> list[bool]:
        """Returns which ranks have got values in one of a number of commits."""

        def commits(number: int) -> bool:
            self.exchange.own.rank = number
            return any([self.ranks[number].commit() for _ in range(8)])  # noqa: C419  (all of them)

        with ThreadPoolExecutor(3) as pool:
            return [one.result(LIMIT_SECONDS) for one in [pool.submit(commits, number) for number in range(3)]]


def compared(rank: Rank) -> list[str]:
    return [one.name for one in KerasTensors(rank, read).find()]


def test_trained_variables_and_those_of_the_optimizer_are_compared() -> None:
    weights = [f"model.trainable_variables[{place}]" for place in range(3)]
    assert compared(Rank(Exchange(1))) == [*weights, *(f"optimizer.variables[{place}]" for place in SLOTS)]


def test_what_differs_by_right_is_not_compared() -> None:
    ranks = Ranks()
    for number, rank in enumerate(ranks.ranks):
        rank.means.value += number
        rank.optimizer._learning_rate.value += number
        rank.optimizer._accumulated_gradients[0].value += number
    assert ranks.commit() == [False] * 3
    assert "objects" not in ranks.exchange.calls
    rank = Rank(Exchange(1))
    rank.optimizer._sirtaki.own.add(rank.trained[0])
    assert compared(rank) == [f"model.trainable_variables[{place}]" for place in (1, 2)]
    del rank.optimizer._trainable_variables[1]
    assert compared(rank) == ["model.trainable_variables[2]"], "another optimizer may train the rest of the model"
    inner = Optimizer(rank.trained)
    scaled = SimpleNamespace(**vars(Optimizer(rank.trained)), inner_optimizer=inner)
    scaled.variables += inner.variables
    rank.optimizer = scaled
    assert len(compared(rank)) == 3 + 4 + 4, "neither of the two learning rates, and no sums"


@pytest.mark.parametrize("how", [{"process_set": ProcessSet([0])}, {"local_updates": object()}, None])
def test_without_averages_on_all_ranks_commits_stay_as_they_are(how: Any) -> None:
    rank = Rank(Exchange(1))
    rank.optimizer = SimpleNamespace() if how is None else Optimizer(rank.trained, **how)
    rank.comparison.begin("heal")
    rank.comparison.offer()
    assert not rank.comparison.is_on
    assert not rank.comparison.offers
    assert compared(rank) == []


def test_a_flipped_bit_is_healed_wherever_it_is(caplog: pytest.LogCaptureFixture) -> None:
    ranks = Ranks()
    for place in range(7):
        victim = ranks.ranks[place % 3]
        wrong, one = victim.compared()[place], ranks.ranks[(place + 1) % 3].compared()[place]
        wrong.flip()
        assert wrong.value.tobytes() != one.value.tobytes()
        caplog.clear()
        assert ranks.commit() == [number == place % 3 for number in range(3)]
        assert wrong.value.tobytes() == one.value.tobytes()
        (text,) = caplog.messages
        assert f"rank {place % 3} differs from ranks " in text
        assert compared(victim)[place] in text


def test_a_variable_of_another_shape_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    ranks = Ranks()
    ranks.ranks[1].trained[1].value = np.zeros(5, np.float32)
    assert ranks.commit() == [False] * 3
    assert "rank 1 differs from ranks 0, 2 in model.trainable_variables[1], and train on" in caplog.text


def test_variables_of_all_kinds_have_digests_and_take_values() -> None:
    for value in (np.float32(1), np.arange(6).reshape(2, 3).T, np.zeros((0, 2)), np.array([True]), np.float16([1, 2])):
        one, other = Variable(value), Variable(np.ascontiguousarray(value).reshape(np.shape(value)))
        first, second = (ComparedVariable("v", variable, read) for variable in (one, other))
        digests = [Pass([variable]).digest(0, 1 << 20) for variable in (first, second)]
        assert digests[0] == digests[1]
        assert b"".join(first.piece(at, at + 1) for at in range(first.bytes)) == one.value.tobytes()
        assert first.fingerprint() == second.fingerprint()
        other.value = np.zeros_like(value)
        second.write(first.read())
        assert np.array_equal(one.value, other.value)
    one.value = np.zeros(7)
    assert Pass([first]).digest(0, 1 << 20) is None
