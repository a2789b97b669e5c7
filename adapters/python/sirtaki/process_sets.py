"""Process sets: groups of ranks with operations of their own.

A set is defined by its ranks: making one is local and sends nothing. Only the ranks of a set agree on its operations,
in a separate name space.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from numbers import Integral

from sirtaki import basics, errors

__all__ = [
    "ProcessSet",
    "add_process_set",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "remove_process_set",
]


class ProcessSet:
    """Some ranks of the job, in ascending order.

    Args:
        ranks: numbers of the ranks; None: all ranks.

    Raises:
        InvalidArgumentError: no rank, a repeated rank, or one below 0.
    """

    def __init__(self, ranks: Iterable[int] | None = None) -> None:
        self._ranks: tuple[int, ...] | None = None
        self._regroups = _added.regroups
        self.process_set_id: int | None = None  # set by add_process_set(); None: not added
        if ranks is None:
            return
        given = list(ranks)
        numbers = all(isinstance(rank, Integral) and not isinstance(rank, bool) and rank >= 0 for rank in given)
        if not given or not numbers or len(set(given)) < len(given):
            raise errors.InvalidArgumentError(f"a process set needs ranks from 0 on, each once; not {given}")
        self._ranks = tuple(sorted(int(rank) for rank in given))

    @property
    def ranks(self) -> list[int]:
        """Numbers of the ranks in the set."""
        return list(range(basics.size())) if self._ranks is None else list(self._ranks)

    def size(self) -> int:
        """Returns the number of ranks."""
        return basics.size() if self._ranks is None else len(self._ranks)

    def included(self) -> bool:
        """Returns True if this rank is in the set."""
        self._check_numbers()
        return self._ranks is None or basics.rank() in self._ranks

    def rank(self) -> int:
        """Returns the number of this rank in the set, from 0. Raises InvalidArgumentError outside the set."""
        if not self.included():
            raise errors.InvalidArgumentError(f"rank {basics.rank()} is not in {self}")
        return basics.rank() if self._ranks is None else self._ranks.index(basics.rank())

    def wire(self) -> tuple[int, ...] | None:
        """Returns the ranks for the runtime; None for all. Raises InvalidArgumentError for ranks outside the job."""
        self._check_numbers()
        if self._ranks is None:
            return None
        if self._ranks[-1] >= basics.size():
            raise errors.InvalidArgumentError(f"{self} has ranks that a job of {basics.size()} does not have")
        return self._ranks

    def _check_numbers(self) -> None:
        if self._ranks is not None and self._regroups != _added.regroups:
            raise errors.InvalidArgumentError(
                f"{self} was made before a rank was lost, and ranks have other numbers now; make it again, and the "
                "optimizers that use it"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessSet) and self._ranks == other._ranks

    def __hash__(self) -> int:
        return hash(self._ranks)

    def __repr__(self) -> str:
        return f"ProcessSet({'all' if self._ranks is None else list(self._ranks)})"


class _Added:
    """The added sets, by id."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.regroups = 0  # number of changes of the numbers of ranks
        self.sets: dict[int, ProcessSet] = {}
        self.numbers = itertools.count(1)


_added = _Added()
global_process_set = ProcessSet()
global_process_set.process_set_id = 0


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Gives a set an id. Operations need none. Equal ids require the same order of calls on all ranks.

    Args:
        process_set: the set, or its ranks.

    Returns:
        The set.

    Raises:
        InvalidArgumentError: the set was added before, or the job does not have all of its ranks.
    """
    wanted = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if basics.is_initialized():
        wanted.wire()
    with _added.lock:
        if wanted == global_process_set or any(wanted == known for known in _added.sets.values()):
            raise errors.InvalidArgumentError(f"{wanted} has been added before")
        wanted.process_set_id = next(_added.numbers)
        _added.sets[wanted.process_set_id] = wanted
    return wanted


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes the id of `process_set`; returns False for the global set and for one without an id."""
    with _added.lock:
        for number, known in _added.sets.items():
            if known == process_set:
                del _added.sets[number]
                known.process_set_id = process_set.process_set_id = None
                return True
    return False


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Returns the ranks of each set by id; id 0 has all ranks."""
    with _added.lock:
        return {0: global_process_set.ranks, **{number: known.ranks for number, known in _added.sets.items()}}


def _forget() -> None:
    with _added.lock:
        for known in _added.sets.values():
            known.process_set_id = None
        _added.sets.clear()
        _added.numbers = itertools.count(1)


def _count_regroup() -> None:
    _added.regroups += 1


basics.on_shutdown(_forget)
basics.on_regroup(_count_regroup)
basics.set_process_set_adder(add_process_set)
