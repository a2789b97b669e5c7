"""Survivors agree on operations by name, in random orders of operations, losses and exchanges."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest

import sirtaki.torch._optimizer.survivors as module
from sirtaki import MismatchError
from sirtaki.errors import RanksChangedError
from sirtaki.torch._optimizer.survivors import Operation, Survivors

OPERATIONS = 4


class Rank:
    """A rank that makes operations; each returns the members of the session in which it was made."""

    def __init__(self) -> None:
        self.survivors = Survivors()
        self.results: list[frozenset[int]] = []
        self.alive = True
        self.session = 0
        self.renew()

    def renew(self) -> None:
        """Called when a session begins, and behind an operation."""
        self.entered = self.in_barrier = self.notices = False
        self.held: frozenset[int] | None = None

    def finish(self, result: frozenset[int]) -> None:
        self.results.append(result)
        self.renew()

    def agree(self, most: Any) -> bool:
        operation = None
        if self.entered:
            operation = Operation(None)
            operation.complete = self.held is not None
        with mock.patch.object(module, "_most", most):
            return self.survivors._agree(0, operation)


class Job:
    """Ranks in random order; `lossy` is how often one of them is lost."""

    def __init__(self, size: int, chance: random.Random, losses: int) -> None:
        self.ranks = [Rank() for _ in range(size)]
        self.chance, self.losses = chance, losses
        self.members = frozenset(range(size))
        self.session = 0

    def living(self) -> list[int]:
        return [i for i in self.members if self.ranks[i].alive]

    def maybe_lose(self, probability: float) -> None:
        if self.losses and len(self.living()) > 1 and self.chance.random() < probability:
            self.losses -= 1
            self.ranks[self.chance.choice(self.living())].alive = False

    def all_reached(self, number: int, stage: str) -> bool:
        """Returns True if all members, lost ones included, have come to a stage of operation `number`."""
        for rank in (self.ranks[i] for i in self.members):
            there = len(rank.results) == number and rank.session == self.session and getattr(rank, stage)
            if not there and len(rank.results) <= number:
                return False
        return True

    def advance(self, i: int) -> None:
        rank, number = self.ranks[i], len(self.ranks[i].results)
        broken = len(self.living()) < len(self.members)
        waits = True
        if not rank.entered and number < OPERATIONS:
            rank.entered, waits = True, False
        elif rank.entered and rank.held is None and self.all_reached(number, "entered"):
            rank.held, waits = self.members, False
        elif rank.held is not None and not rank.in_barrier:
            rank.in_barrier, waits = True, False
        elif rank.in_barrier and self.all_reached(number, "in_barrier"):
            rank.survivors.operations += 1
            rank.finish(self.members)
            waits = False
        # Messages of a lost rank may or may not arrive before the news.
        if broken and (waits or self.chance.random() < 0.3):
            rank.notices = True

    def regroup(self) -> None:
        """Opens sessions until an exchange has reached all that are left; those whom it has reached go on at once."""
        self.members = frozenset(self.living())
        self.session += 1
        most = [0, max(self.ranks[i].survivors.operations for i in self.members), 0]
        before = len(self.living())
        self.maybe_lose(0.5)
        broken = len(self.living()) < before
        for i in self.living():
            rank = self.ranks[i]
            answer = most if not broken or self.chance.random() < 0.5 else RanksChangedError("another")
            try:
                counts = rank.agree(mock.Mock(side_effect=[answer]))
            except RanksChangedError:
                rank.notices = True
                continue
            held, rank.session = rank.held, self.session
            if counts:
                assert held is not None
                rank.finish(held)
            else:
                rank.renew()


def run(size: int, seed: int, losses: int) -> Job:
    job = Job(size, random.Random(seed), losses)
    while any(len(job.ranks[i].results) < OPERATIONS for i in job.living()):
        able = [i for i in job.living() if not job.ranks[i].notices]
        if not able or (len(job.living()) < len(job.members) and all(ends(job, i) for i in able)):
            job.regroup()
            continue
        job.advance(job.chance.choice(able))
        job.maybe_lose(0.08)
    return job


def ends(job: Job, i: int) -> bool:
    """Returns True if a rank has come to the end of the program, where it waits for no other."""
    return len(job.ranks[i].results) == OPERATIONS


@pytest.mark.parametrize("size", [2, 3, 4])
def test_survivors_return_the_same_results(size: int) -> None:
    seen = set()
    for seed in range(1500):
        job = run(size, seed, losses=size - 1)
        results = [tuple(job.ranks[i].results) for i in job.living()]
        assert all(one == results[0] for one in results), seed
        seen.add(results[0])
    assert len(seen) > size * OPERATIONS


def test_programs_that_differ_are_told() -> None:
    behind = Survivors()
    most = mock.patch.object(module, "_most", return_value=[0, 1, 0])
    rank = mock.patch("sirtaki.basics.rank", return_value=2)
    with most, rank, pytest.raises(MismatchError, match="1 and, on rank 2, 0"):
        behind._agree(0, None)
