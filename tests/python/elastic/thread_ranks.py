"""Exchanges between threads, each of which pretends to be a rank that compares its state with others."""

from __future__ import annotations

import copy
import threading
from typing import Any

from sirtaki.errors import RanksChangedError

LIMIT_SECONDS = 30
LOST = RanksChangedError("rank 1 was lost")


class Exchange:
    """Implements sirtaki.elastic._comparison.Ranks."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks)
        self.sent: list[Any] = [None] * ranks
        self.own = threading.local()
        #: Names of the calls of rank 0.
        self.calls: list[str] = []
        self.ended: set[int] = set()
        #: Number of a broadcast of a commit in which all ranks raise LOST.
        self.lost_in_broadcast = -1

    def rank(self) -> int:
        return int(self.own.rank)

    def gather(self, call: str, value: Any) -> list[Any]:
        if self.rank() == 0:
            self.calls.append(call)
        self.sent[self.rank()] = value
        self.barrier.wait(LIMIT_SECONDS)
        sent = copy.deepcopy(self.sent)
        self.barrier.wait(LIMIT_SECONDS)
        return sent

    def rows(self, row: list[int]) -> list[list[int]]:
        return self.gather("rows", row)

    def objects(self, value: Any) -> list[Any]:
        return self.gather("objects", value)

    def broadcast(self, values: Any, root: int) -> Any:
        got = self.gather("broadcast", values)[root]
        self.own.broadcasts = getattr(self.own, "broadcasts", 0) + 1  # of a commit: each has a thread of its own
        if self.own.broadcasts == self.lost_in_broadcast:
            raise LOST
        return got

    def share_optimizer(self, optimizer: Any, root: int) -> None:
        optimizer.load_state_dict(self.gather("share", optimizer.state_dict())[root])

    def end(self) -> None:
        self.ended.add(self.rank())
