"""Readings: bytes, codecs and local updates of a session over time, thinned so that their number is bounded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sirtaki._telemetry.samples import MAX_POINTS
from sirtaki._telemetry.stats_view import bytes_by_codec, links, traffic

#: Seconds between the first readings. Twice as many after each thinning.
_FIRST_PAUSE = 0.1
#: A reading is made only after as many times its own duration, so that all readings take 1 % of the time at most.
_COST_FACTOR = 100


class Readings:
    """Readings of one session. Used from the threads that step; two of them at the same time may both read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = self._due = clock()
        self._pause = _FIRST_PAUSE
        self._rows: list[dict[str, Any]] = []

    def is_due(self, now: float) -> bool:
        """Returns True if it is time for another reading."""
        return now >= self._due

    def read(self, steps: int, stats: Callable[[], dict[str, Any]], local: Callable[[], dict[str, Any]]) -> None:
        """Makes a reading after `steps` steps of all optimizers; `local` returns local_stats() of one of them."""
        begin = self._clock()
        self._rows.append(self._row(steps, stats(), local()))
        if len(self._rows) == MAX_POINTS:
            self._rows = self._rows[1::2]
            self._pause *= 2
        now = self._clock()
        self._due = now + max(self._pause, _COST_FACTOR * (now - begin))

    def rows(self) -> list[dict[str, Any]]:
        """Returns the readings, at most MAX_POINTS, the oldest first."""
        return list(self._rows)

    def _row(self, steps: int, stats: dict[str, Any], local: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {
            "seconds": self._clock() - self._begin,
            "steps": steps,
            **traffic(stats),
            **links(stats),
            "codecs": {codec: sums["step_bytes"] for codec, sums in bytes_by_codec(stats).items()},
        }
        if local:
            row["local"] = {name: local[name] for name in ("mode", "interval", "delay", "rounds", "divergence")}
        return row
