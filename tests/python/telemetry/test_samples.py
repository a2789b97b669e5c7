"""The thinned samples of steps, and readings of statistics."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from sirtaki._telemetry.readings import Readings
from sirtaki._telemetry.samples import MAX_POINTS, StepSamples


def test_samples_are_thinned_and_lose_no_second() -> None:
    for steps in (1, MAX_POINTS - 1, MAX_POINTS, MAX_POINTS + 1, 10 * MAX_POINTS + 7):
        samples = StepSamples()
        for step in range(1, steps + 1):
            samples.add(1.0 + (step == 5), 0.25)
        points = samples.points()
        assert len(points) <= MAX_POINTS
        assert steps < MAX_POINTS or len(points) >= MAX_POINTS // 2
        assert points[-1].step == sum(point.steps for point in points) == steps
        assert [b.step - a.step for a, b in pairwise(points)] == [p.steps for p in points[1:]]
        assert sum(point.seconds for point in points) == steps + (steps >= 5)
        assert sum(point.exposed_seconds for point in points) == steps / 4
        assert max(point.longest_seconds for point in points) == (2.0 if steps >= 5 else 1.0)


def test_readings_are_bounded_and_cost_one_percent() -> None:
    now = [0.0]

    def stats() -> dict[str, Any]:
        now[0] += 0.01  # seconds of a reading
        row = {"codec": "int8", "held_bytes": 40, "wire_bytes": 10}
        return {
            "peers": [{"bytes_sent": 7, "bytes_received": 8}],
            "streams.raw_bytes": 400,
            "tensors": {"a": [row, row]},
        }

    readings = Readings(lambda: now[0])
    made = 0
    while now[0] < 3000:
        now[0] += 0.05
        if readings.is_due(now[0]):
            readings.read(made, stats, dict)
            made += 1
    assert made * 0.01 <= 0.01 * now[0]
    rows = readings.rows()
    assert MAX_POINTS // 2 <= len(rows) < MAX_POINTS
    assert rows[-1]["steps"] >= made - 4
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert rows[0]["codecs"] == {"int8": 20}
    assert (rows[0]["gradient_bytes"], rows[0]["sent_bytes"]) == (400, 7)
    assert "local" not in rows[0]
    local = {"mode": "local", "interval": 4, "delay": 1, "rounds": 2, "divergence": 0.5, "reason": "link"}
    readings.read(made, stats, lambda: local)
    assert readings.rows()[-1]["local"]["divergence"] == 0.5
