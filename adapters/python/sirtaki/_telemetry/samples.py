"""StepSamples: times of the steps of one optimizer, thinned so that their number is bounded."""

from __future__ import annotations

from dataclasses import dataclass

#: Most points of a thinned series; even.
MAX_POINTS = 512


@dataclass(frozen=True)
class Point:
    """Neighbouring steps: the number of the last one, their count, seconds of all, of the longest, and of waits."""

    step: int
    steps: int
    seconds: float
    longest_seconds: float
    exposed_seconds: float


class StepSamples:
    """Times of steps. Each point covers the same number of steps, which doubles when there are MAX_POINTS points.

    Steps are added from one thread at a time; another thread that reads may miss the last step or see it twice.
    """

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._steps_per_point = 1
        self._steps = 0
        self._open_steps = 0
        self._open_seconds = self._open_longest = self._open_exposed = 0.0

    def add(self, seconds: float, exposed_seconds: float) -> None:
        """Adds a step that took `seconds` and waited `exposed_seconds`."""
        self._steps += 1
        self._open_steps += 1
        self._open_seconds += seconds
        self._open_exposed += exposed_seconds
        self._open_longest = max(self._open_longest, seconds)
        if self._open_steps < self._steps_per_point:
            return
        self._points.append(self._open_point())
        self._open_steps = 0
        self._open_seconds = self._open_longest = self._open_exposed = 0.0
        if len(self._points) == MAX_POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [_joined(first, second) for first, second in pairs]
            self._steps_per_point *= 2

    def points(self) -> list[Point]:
        """Returns the points, at most MAX_POINTS; the last one may cover fewer steps than the others."""
        return [*self._points, self._open_point()] if self._open_steps > 0 else list(self._points)

    def _open_point(self) -> Point:
        return Point(self._steps, self._open_steps, self._open_seconds, self._open_longest, self._open_exposed)


def _joined(first: Point, second: Point) -> Point:
    return Point(
        second.step,
        first.steps + second.steps,
        first.seconds + second.seconds,
        max(first.longest_seconds, second.longest_seconds),
        first.exposed_seconds + second.exposed_seconds,
    )
