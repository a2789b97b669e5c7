"""Schedules of faults, the same for all systems: times and kinds by a seed, victims by lot among ranks that live."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.faults.records import CUT, KILL, STOP


@dataclass(frozen=True)
class Event:
    """A fault that is due `after` seconds from the begin; `lot` in [0, 1) chooses the victim."""

    after: float
    kind: str
    lot: float

    def victim(self, living: Mapping[int, int]) -> tuple[int, int]:
        """Returns slot and process of the victim among those of `living`."""
        return sorted(living.items())[int(self.lot * len(living))]


def poisson(count: int, seconds: float, kinds: Sequence[str], seed: int) -> list[Event]:
    """Returns `count` faults in `seconds`, at times independent of each other; kinds take turns."""
    draw = random.Random(seed)
    times = sorted(draw.uniform(0, seconds) for _ in range(count))
    return [Event(time, kinds[i % len(kinds)], draw.random()) for i, time in enumerate(times)]


def evenly(count: int, seconds: float, kind: str, seed: int) -> list[Event]:
    """Returns `count` faults of one kind, the first at once and the others at equal distances."""
    draw = random.Random(seed)
    return [Event(i * seconds / count, kind, draw.random()) for i in range(count)]


def told(events: Sequence[Event]) -> str:
    """Returns the schedule in words."""
    names = {KILL: "SIGKILL", STOP: "SIGSTOP", CUT: "cut"}
    return ", ".join(f"{names[event.kind]} at {event.after:.1f} s" for event in events)
