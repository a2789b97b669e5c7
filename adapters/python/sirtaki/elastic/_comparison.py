"""Comparison of an elastic state among ranks at its commits: silent differences are found, and healed by the majority.

Each commit compares a digest of one piece of the state, which travels in the exchange that a commit makes anyway. Rank
0 measures how large pieces may be, so all ranks take them alike. Where digests differ, all ranks know it: they exchange
the digests of all tensors, and the values of the majority replace the others (option elastic.divergence). The tensors
and the exchanges are those of a framework.
"""

from __future__ import annotations

import logging
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, NoReturn, Protocol

from sirtaki import basics, errors
from sirtaki._end_report import session
from sirtaki.elastic._divergence import (
    Difference,
    Fingerprint,
    can_heal,
    differences,
    roots_of,
    told_of_end,
    told_of_healing,
    told_of_report,
)

_log = logging.getLogger("sirtaki")

#: A tensor costs as much time as so many bytes more than it has.
OVERHEAD_BYTES = 16 << 10
#: Part of the time between two commits that digests may take.
_SHARE = 1 / 500
#: Length of the first piece behind a sync(), and of the smallest one.
_FIRST, _LEAST = 4 * OVERHEAD_BYTES, OVERHEAD_BYTES
#: Comparisons after which the next pass looks for tensors anew, because that takes as long as some digests.
_LOOK_AFTER = 16
#: In the place of a position: this rank has no digest.
_NONE = -1


class Compared(Protocol):
    """A tensor that is compared. The object that has it may replace it."""

    @property
    def name(self) -> str:
        """Returns a name that is the same on all ranks."""

    @property
    def kind(self) -> str:
        """Returns shape and type, as they were when the tensor was found."""

    @property
    def bytes(self) -> int:
        """Returns the size."""

    def fingerprint(self) -> Fingerprint:
        """Returns the description that ranks compare."""

    def piece(self, first: int, last: int) -> Any:
        """Returns some bytes in host memory; None if there is no tensor of this kind any more."""

    def read(self) -> Any:
        """Returns all bytes, for Ranks.broadcast(); maybe in the memory of the tensor."""

    def write(self, values: Any) -> None:
        """Sets the tensor to a result of read(), of any rank."""


class Tensors(Protocol):
    """The part of a state that is compared."""

    def is_any(self) -> bool:
        """Returns True if the state has an optimizer whose tensors are compared."""

    def find(self) -> Sequence[Compared]:
        """Returns the tensors that are compared now, in an order that is the same on all ranks."""

    def settle(self) -> None:
        """Waits until devices have written those found last."""

    def optimizer(self, name: str) -> Any:
        """Returns the optimizer with this name in fingerprints."""


class Ranks(Protocol):
    """The exchanges between ranks, all of them collective."""

    def rank(self) -> int:
        """Returns the number of this rank."""

    def rows(self, row: list[int]) -> list[list[int]]:
        """Returns the rows of all ranks."""

    def objects(self, value: Any) -> list[Any]:
        """Returns the objects of all ranks."""

    def broadcast(self, values: Any, root: int) -> Any:
        """Returns the bytes of rank `root`. Leaves `values` as they are."""

    def share_optimizer(self, optimizer: Any, root: int) -> None:
        """Gives an optimizer the state that it has on rank `root`."""

    def end(self) -> None:
        """Ends the session in order, so that no rank takes another one for lost."""


class Job:
    """The ranks of the job; derived classes exchange by the operations of a framework."""

    #: Name of rows(). A rank that waits in vain for the others names the call.
    ROWS = "state.commit()"
    #: Names of objects() and broadcast().
    DIGESTS, VALUES = "sirtaki.divergence.digests", "sirtaki.divergence.values"

    def rank(self) -> int:
        """Implements Ranks."""
        return basics.rank()

    def rows(self, row: list[int]) -> list[list[int]]:
        """Implements Ranks."""
        raise NotImplementedError

    def objects(self, value: Any) -> list[Any]:
        """Implements Ranks."""
        raise NotImplementedError

    def end(self) -> None:
        """Implements Ranks."""
        with suppress(errors.HorovodInternalError):
            self.objects(None)
        basics.shutdown()


class Pass:
    """One pass over tensors in pieces of bounded size, each of which has a digest.

    Args:
        tensors: those of the pass.
    """

    def __init__(self, tensors: Sequence[Compared]) -> None:
        self._tensors = tensors
        self._starts = [0, *accumulate(one.bytes + OVERHEAD_BYTES for one in tensors)]
        #: Length of the pass in bytes, with those that tensors cost in addition.
        self.length = self._starts[-1]
        self._seed = zlib.crc32(repr([(one.name, one.kind) for one in tensors]).encode())

    def digest(self, begin: int, length: int) -> int | None:
        """Returns the digest of a piece; None if a tensor in it has gone, or has another shape than before."""
        digest, end = self._seed, begin + length
        for number in range(bisect_right(self._starts, begin) - 1, len(self._tensors)):
            one, start = self._tensors[number], self._starts[number]
            if start >= end:
                break
            first, last = max(0, begin - start), min(one.bytes, end - start)
            if first >= last:
                continue
            values = one.piece(first, last)
            if values is None:
                return None
            digest = zlib.crc32(values, digest)
        return digest


class Comparison:
    """Compares the tensors of one state. Used from the thread that commits.

    Args:
        tensors: the state.
        ranks: the exchanges.
        clock: returns seconds.
    """

    def __init__(self, tensors: Tensors, ranks: Ranks, clock: Callable[[], float] = time.perf_counter) -> None:
        self._tensors = tensors
        self._ranks = ranks
        self._clock = clock
        self._how = "off"
        self._last: float | None = None
        self._pass: Pass | None = None
        self._position = 0
        #: Comparisons with the tensors of _pass.
        self._uses = 0
        self._length = self._next_length = _FIRST
        #: Position, length and digest of the piece for the next exchange.
        self._offered: tuple[int, int, int] | None = None
        #: All digests were exchanged in this pass, and nothing was healed.
        self._is_settled = False
        #: Names of tensors that a warning has named (report).
        self._told: set[str] = set()

    @property
    def is_on(self) -> bool:
        """True if exchanges are those of meet(); the same on all ranks."""
        return self._how != "off" and basics.in_loop()

    @property
    def offers(self) -> bool:
        """True if there is a digest for the next exchange."""
        return self._offered is not None

    def is_possible(self) -> bool:
        """Returns whether all ranks have an optimizer whose tensors are compared. Collective.

        A rank that has none would make other exchanges than the others.
        """
        return all(self._ranks.objects(self._tensors.is_any()))

    def begin(self, how: str) -> None:
        """Begins with the first piece, because the state has become equal on all ranks: sync().

        Without an optimizer whose tensors are compared, exchanges stay those of the state.

        Args:
            how: the option elastic.divergence.
        """
        self._how = how if self._tensors.is_any() else "off"
        self._last, self._offered = None, None
        self._length = self._next_length = _FIRST
        self._look_anew()

    def offer(self) -> None:
        """Makes the digest of a piece for the next exchange, if there is anything to compare."""
        self._offered = None
        if not self.is_on:
            return
        if self._pass is None:
            self._pass = Pass(self._tensors.find())
        if self._pass.length == 0:
            self._look_anew()
            self._offered = _NONE, self._length, 0  # other ranks may have something, and wait for this one
            return
        self._tensors.settle()
        begin = self._clock()
        digest = self._pass.digest(self._position, self._length)
        self._measure(begin, self._clock() - begin, self._pass.length)
        position = _NONE if digest is None else self._position
        self._offered = position, self._length, digest or 0

    def meet(self, change: int) -> tuple[int, bool]:
        """Exchanges a number and the digest. Collective.

        Returns:
            The number of rank 0, and True if the values of other ranks have replaced some here.

        Raises:
            MismatchError: ranks differ, and the job ends; the session has ended. The same on all ranks.
        """
        offered, self._offered = self._offered, None
        position, length, digest = offered or (_NONE, 0, 0)
        rows = self._ranks.rows([change, self._next_length, position, digest])
        self._length = self._next_length = rows[0][1]
        got_some = offered is not None and self._judge([row[2:] for row in rows], length)
        return rows[0][0], got_some

    def _measure(self, begin: float, seconds: float, longest: int) -> None:
        """Chooses the length of the next piece, which counts if this is rank 0."""
        if self._last is not None:
            fitting = self._length * _SHARE * (begin - self._last) / max(seconds, 1e-9)
            # A long pause, for a validation perhaps, does not make the next piece long.
            self._next_length = int(min(max(fitting, _LEAST), 2 * self._length, max(longest, _LEAST)))
        self._last = begin

    def _judge(self, rows: list[list[int]], length: int) -> bool:
        """Compares positions and digests. Returns True if this rank has got values. Collective: all see the same."""
        positions = {position for position, _ in rows}
        if len(positions) > 1 or _NONE in positions:
            self._look_anew()  # a rank cannot follow, so all begin again
            return False
        got_some = False
        if len({digest for _, digest in rows}) > 1 and not self._is_settled:
            got_some = self._settle()
        if self._pass is None:
            return got_some
        self._position += length
        self._uses += 1
        if self._position >= self._pass.length:
            self._position, self._is_settled = 0, False
            if self._uses >= _LOOK_AFTER:
                self._look_anew()
        return got_some

    def _look_anew(self) -> None:
        """Begins the next pass with the tensors that are there then."""
        self._pass, self._position, self._uses, self._is_settled = None, 0, 0, False

    # ---- a difference: the same on all ranks from here on ----

    def _settle(self) -> bool:
        """Finds the tensors that differ, and treats them as the option says. Returns True if this rank has got values.

        Nothing may be found, for example where only the layouts of a tensor in memory differ.

        Raises:
            MismatchError: the job ends.
        """
        tensors, found = self._find()
        if not found or self._how == "report" or (self._how == "heal" and not can_heal(found)):
            self._is_settled = True
            self._report(found)
            return False
        if self._how == "stop":
            self._stop(found)
        left, shared = found, self._share_optimizers(found)
        if shared:
            tensors, left = self._find()
            left = [one for one in left if one.majority is not None and not one.of_other_kind]
        got_some = self._take(tensors, left)
        if self._ranks.rank() == 0:
            _log.warning("%s", told_of_healing(found))
        session.totals.add_diverged(len(found))
        self._look_anew()
        return got_some or shared

    def _find(self) -> tuple[dict[str, Compared], list[Difference]]:
        """Returns the tensors of this rank by name, and those that differ between ranks. Collective."""
        tensors = {one.name: one for one in self._tensors.find()}
        mine = {name: one.fingerprint() for name, one in tensors.items()}
        return tensors, differences(self._ranks.objects(mine))

    def _report(self, found: list[Difference]) -> None:
        fresh = [one for one in found if one.name not in self._told]
        self._told.update(one.name for one in fresh)
        session.totals.add_diverged(len(fresh))
        if fresh and self._ranks.rank() == 0:
            _log.warning("%s", told_of_report(fresh, self._how == "heal"))

    def _stop(self, found: list[Difference]) -> NoReturn:
        """Ends the session in order on all ranks, so that elastic.run() does not try again from rank 0."""
        ordered = sorted(found, key=lambda one: one.majority is not None)
        error = errors.MismatchError(told_of_end(ordered), tensor=ordered[0].name)
        self._ranks.end()
        raise error

    def _share_optimizers(self, found: list[Difference]) -> bool:
        """Gives all ranks the state of an optimizer of which some lack tensors. Returns True if there is one.

        Collective.
        """
        roots = roots_of(found)
        for name, root in roots.items():
            assert root is not None, name
            self._ranks.share_optimizer(self._tensors.optimizer(name), root)
        return bool(roots)

    def _take(self, tensors: dict[str, Compared], found: list[Difference]) -> bool:
        """Takes the values of majorities. Returns True if this rank has got some. Collective."""
        rank, got_some = self._ranks.rank(), False
        for one in found:
            assert one.majority is not None, one
            tensor = tensors[one.name]
            values = self._ranks.broadcast(tensor.read(), one.majority[0])
            if rank not in one.majority:
                tensor.write(values)
                got_some = True
        return got_some
