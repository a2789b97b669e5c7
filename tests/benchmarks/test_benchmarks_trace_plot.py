"""Steps and partitions found in a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import trace_plot


def _span(category: str, name: str, begin_ms: float, end_ms: float, position: int | None = None) -> dict[str, Any]:
    where = {} if position is None else {"position": position}
    times = {"ts": begin_ms * 1e3, "dur": (end_ms - begin_ms) * 1e3}
    return {"ph": "X", "pid": 0, "cat": category, "name": name, "args": {"stage": category, **where}, **times}


def _trace() -> list[dict[str, Any]]:
    spans = [{"ph": "M", "pid": 0, "name": "process_name"}, {**_span("user", "backward b", 0, 1), "pid": 1}]
    for start in (100.0, 200.0, 300.0):
        spans += [
            _span("user", "backward b", start, start + 20),
            _span("user", "backward a", start + 20, start + 40),
            _span("queue", "s: a.weight behind s: b.weight", start + 40, start + 45, 0),
            _span("network", "s: a.weight", start + 45, start + 60, 0),
            _span("network", "s b.weight", start + 20, start + 44, 1),
            _span("need", "s a.weight", start + 62, start + 62, 0),
            _span("user", "forward a", start + 62, start + 72),
            _span("user", "forward b", start + 72, start + 82),
        ]
    return spans


def test_a_step_goes_from_one_backward_to_the_next() -> None:
    steps = trace_plot.steps_of(trace_plot.rank_events(_trace(), 0))
    assert [step.seconds for step in steps] == [pytest.approx(0.1)] * 2
    assert [mark for mark, _, _ in steps[0].compute] == ["backward b", "backward a", "forward a", "forward b"]


def test_a_partition_tells_when_it_was_ready_on_the_wire_and_needed() -> None:
    first, second = trace_plot.steps_of(trace_plot.rank_events(_trace(), 0))[1].partitions
    assert (first.position, first.name) == (0, "a.weight")
    assert first.queued == (pytest.approx(0.040), pytest.approx(0.045))
    assert first.wire == (pytest.approx(0.045), pytest.approx(0.060))
    assert first.needed == pytest.approx(0.062)
    assert second.queued is None
    assert second.needed is None


def test_a_trace_without_marks_has_no_steps() -> None:
    assert trace_plot.steps_of(trace_plot.rank_events([_span("network", "s", 1, 2, 0)], 0)) == []


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    step = trace_plot.steps_of(trace_plot.rank_events(_trace(), 0))[0]
    drawn = trace_plot.draw(step, "a step", tmp_path / "step.svg")
    assert drawn is not None
    assert "<svg" in drawn.read_text()
