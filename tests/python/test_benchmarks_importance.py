"""Figures of the benchmark of a link that changes."""

from __future__ import annotations

import pytest

from benchmarks import importance, trainings


def test_steps_to_the_target_count_whole_windows() -> None:
    losses = [4.0, 4.0, 2.0, 2.0, 1.0]
    assert trainings.steps_to(losses, 4.0, 2) == 2
    assert trainings.steps_to(losses, 3.0, 2) == 3
    assert trainings.steps_to(losses, 1.5, 2) == 5
    assert trainings.steps_to(losses, 1.4, 2) is None


def test_a_fixed_rate_is_slow_between_the_changes() -> None:
    assert importance.fixed_seconds(5, 1.0, 4.0, 10.0) == pytest.approx(5.0)
    assert importance.fixed_seconds(12, 1.0, 4.0, 10.0) == pytest.approx(10.0 + 8.0)
    assert importance.fixed_seconds(20, 1.0, 4.0, 10.0) == pytest.approx(10.0 + 10.0 + 7.5)


def test_the_oracle_has_the_pace_of_the_phase() -> None:
    found = {"ends": [1.0, 2.0, 6.0, 10.0, 11.0], "changes": [2.0, 10.0]}
    assert importance.oracle_ratio(found, 1.0, 4.0) == pytest.approx(1.0)
    assert importance.oracle_ratio(found, 0.5, 2.0) == pytest.approx(2.0)


def test_adapting_ends_when_as_much_is_sent_as_later_in_the_phase() -> None:
    sent = [100] * 10 + [100] * 3 + [10] * 7 + [10] * 5 + [85] * 15
    ends = [float(step + 1) for step in range(len(sent))]
    found = {"ends": ends, "sent": sent, "changes": [10.0, 20.0]}
    assert importance.steps_to_adapt(found) == [3.0, 5.0]


def test_a_plan_that_does_not_follow_a_faster_link_has_not_adapted() -> None:
    sent = [100] * 10 + [10] * 10 + [10] * 15
    found = {"ends": [float(step + 1) for step in range(35)], "sent": sent, "changes": [10.0, 20.0]}
    assert importance.steps_to_adapt(found) == [0.0, 15.0]


def test_a_plan_that_never_settles_takes_the_whole_phase() -> None:
    sent = [100] * 10 + [10, 1000] * 10
    found = {"ends": [float(step + 1) for step in range(30)], "sent": sent, "changes": [10.0]}
    assert importance.steps_to_adapt(found) == [20.0]
