"""The survivors of a loss in an elastic job, outside of elastic.run(): they regroup and agree on the work that counts.

Programs make the same steps and operations by name in the same order on all ranks. So the survivors compare how many of
them they have made. A rank that has begun fewer steps leaves as many out: they are void on the others. An operation
counts if some rank has passed the barrier behind it, which proves that all ranks hold the result; else all survivors
make it again.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakSet

import torch

from sirtaki import _growth, basics, errors
from sirtaki.ops import ReduceOp
from sirtaki.torch._adapter import torch_ops


class Member(Protocol):
    """A stream of gradients."""

    #: True if steps survive the loss of a rank in an elastic job, and may be void then.
    outlives_losses: bool

    def bears_losses(self) -> bool:
        """Returns True if the loss of a rank leaves the stream alike on all survivors."""

    def abandon(self) -> None:
        """Gives up the stream, because its session ends. Never raises."""

    def keep(self) -> None:
        """Keeps the results of a step in flight, and what the stream holds, before the session ends."""

    def settle(self) -> None:
        """Learns whether the step in flight counts, in the next session."""

    def has_begun(self) -> bool:
        """Returns True if a step in flight has got its fate from settle()."""


all_streams: WeakSet[Any] = WeakSet()


class Operation:
    """An operation by name of this rank that not all ranks are known to have completed."""

    def __init__(self, root_rank: int | None) -> None:
        self._root = root_rank
        self._was_root = self._is_root()
        #: This rank holds the result.
        self.complete = False

    def has_other_root(self) -> bool:
        """Returns True on a rank whose place as the root of a broadcast was lost, or came by a loss.

        If no rank has the number of the root any more, returns True on all ranks.
        """
        return self._was_root != self._is_root() or (self._root is not None and self._root >= basics.size())

    def _is_root(self) -> bool:
        return self._root is not None and self._root == basics.rank()


class Survivors:
    """Counts the steps and operations of this rank, and compares them when ranks were lost."""

    def __init__(self) -> None:
        #: Options of the session make it elastic. Cached, because each operation by name asks.
        self.elastic = False
        #: The program has an optimizer for which every loss is an error, and which is no stream.
        self.bound = False
        self.reset()

    def reset(self) -> None:
        """Called when all ranks go back to a commit, and by join(): ranks with fewer batches have made fewer steps."""
        #: Steps of all optimizers.
        self.steps = 0
        #: Steps that this rank has to leave out, because they are void on a rank that was ahead.
        self.behind = 0
        #: Operations by name that all ranks have completed.
        self.operations = 0
        #: Number of a broadcast that cannot be made again; 0: none.
        self.rootless = 0

    def note_session(self) -> None:
        """Called when a session has begun."""
        self.elastic = basics.is_elastic()
        self.reset()

    def repeats(self) -> bool:
        """Returns True, alike on all ranks, where a lost rank may lead to repeated operations."""
        return self.elastic and not basics.in_loop() and not _growth.has_looped()

    def go_on(self) -> bool:
        """Returns True if the loss of a rank is no error."""
        bear = not self.bound and all(stream.bears_losses() for stream in all_streams)
        return bear and basics.goes_on_after_losses()

    def regroup(self, operation: Operation | None = None) -> bool:
        """Opens the next session with the other survivors. Raises the errors of basics.regroup().

        Args:
            operation: the one that this rank is in; None: it is in a step.

        Returns:
            True if the operation counts, with the result that this rank holds.
        """
        mine: list[Member] = [stream for stream in all_streams if stream.outlives_losses]
        for stream in set(all_streams).difference(mine):
            stream.abandon()  # it has never been open: see bears_losses()
        while True:
            for stream in mine:
                stream.keep()
            basics.open_next_session()
            for stream in mine:
                stream.settle()
            begun = self.steps + sum(stream.has_begun() for stream in mine)
            try:
                return self._agree(begun, operation)
            except errors.RanksChangedError:
                continue  # another rank is lost

    def _agree(self, begun: int, operation: Operation | None) -> bool:
        # A rank that has learned of a lost root says so again, when another loss follows before its own broadcast.
        loses_root = operation is not None and operation.has_other_root()
        rootless = self.operations + 1 if loses_root or self.rootless > self.operations else 0
        steps, operations, self.rootless = _most([begun, self.operations, rootless])
        self.behind = steps - begun
        counts = operations > self.operations
        if operations > self.operations + int(operation is not None and operation.complete):
            raise errors.MismatchError(
                f"ranks have made different numbers of operations by name: {operations} and, on rank {basics.rank()}, "
                f"{self.operations}; a loss leaves the others in step only if all ranks make the same operations"
            )
        self.operations = operations
        return counts

    def check_root(self) -> None:
        """Refuses, on all ranks, a broadcast that has lost its root before all ranks had the result."""
        if self.rootless != self.operations + 1:
            return
        self.rootless = 0
        raise errors.RanksChangedError(
            "the root of a broadcast was lost, or has another number, before all had the data"
        )


def _most(numbers: list[int]) -> list[int]:
    """Returns the maximum of each number over the ranks. Collective."""
    if torch_ops.size() == 1:
        return numbers
    value = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    work = torch_ops.allreduce(value, "sirtaki.survivors", ReduceOp.MAX, (1.0, 1.0), in_place=True)
    most: list[int] = torch_ops.start_one(work).wait().tolist()
    return most


survivors = Survivors()
if basics.is_initialized():  # a program may import sirtaki.torch behind sirtaki.init()
    survivors.note_session()
basics.after_init(survivors.note_session)
basics.before_regroup(survivors.reset)
