"""The thinned samples of steps."""

from __future__ import annotations

from itertools import pairwise

from sirtaki._telemetry.samples import MAX_POINTS, StepSamples


def test_samples_are_thinned_and_lose_no_second() -> None:
    for steps in (1, MAX_POINTS - 1, MAX_POINTS, MAX_POINTS + 1, 10 * MAX_POINTS + 7):
        samples = StepSamples()
        for step in range(1, steps + 1):
            samples.add(float(step), 1.0 + (step == 5), 0.25)
        points = samples.points()
        assert len(points) <= MAX_POINTS
        assert steps < MAX_POINTS or len(points) >= MAX_POINTS // 2
        assert points[-1].step == sum(point.steps for point in points) == steps
        assert [b.step - a.step for a, b in pairwise(points)] == [p.steps for p in points[1:]]
        assert sum(point.seconds for point in points) == steps + (steps >= 5)
        assert sum(point.exposed_seconds for point in points) == steps / 4
        assert max(point.longest_seconds for point in points) == (2.0 if steps >= 5 else 1.0)
        assert samples.last_time == steps
