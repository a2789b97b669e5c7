"""Figures of the benchmark of local updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.local import drills, race
from benchmarks.local.cases import RANKS, Watched, final_loss, points, step_at


def watched(curve: Sequence[tuple[float, float]] = ((1.0, 1.0),), **more: Any) -> Watched:
    kept = {"ends": [], "paces": [], "quality": 0.0, "local": {}}
    return Watched.of({"curve": [list(point) for point in curve], **kept, **more})


def test_the_target_is_reached_between_two_points() -> None:
    one = watched([(10, 4.0), (20, 2.0), (30, 1.0), (30, 0.9)])
    assert final_loss(one) == 0.9
    assert step_at(one, 3.0) == pytest.approx(15.0)
    assert step_at(one, 2.0) == pytest.approx(20.0)
    assert step_at(one, 1.5) == pytest.approx(25.0)
    assert step_at(one, 0.95) == pytest.approx(30.0)
    assert step_at(one, 0.5) is None


def test_a_loss_that_rises_again_has_not_reached_the_target() -> None:
    one = watched([(10, 1.0), (20, 3.0), (30, 1.0)])
    assert step_at(one, 2.0) == pytest.approx(25.0)
    assert step_at(watched([(10, 1.0), (20, 3.0)]), 2.0) is None


def test_points_are_of_a_hundred() -> None:
    assert points([0.9, 0.8], [0.91, 0.8]) == pytest.approx([1.0, 0.0])


def test_a_rank_is_left_out_so_many_rounds_after_its_fault() -> None:
    def excluded_from(first: int) -> Watched:
        counts = [0.0] * first + [1.0] * (400 - first)
        return watched(paces=[{"merges_excluded": [0.0] * 400}] * (RANKS - 1) + [{"merges_excluded": counts}])

    assert drills.rounds_to_exclude(excluded_from(202), 200) == 1.0
    assert drills.rounds_to_exclude(excluded_from(209), 200) == 2.0
    assert drills.rounds_to_exclude(excluded_from(400), 200) == 26.0


def test_what_the_last_rank_waits_after_the_warm_up_is_the_links() -> None:
    early = {"exposed": [5.0, 10.0, 12.0, 12.5], "interval": [1.0, 1.0, 4.0, 4.0]}
    late = {"exposed": [5.0, 10.0, 10.5, 13.5], "interval": [1.0, 1.0, 4.0, 4.0]}
    after, whole = race.exposed_rows({}, [watched(paces=[early, late], ends=[6.0, 12.0, 13.0, 22.0])])
    assert after.value == pytest.approx(0.5 / 9.0)
    assert whole.value == pytest.approx(13.0 / 22.0)


def test_a_training_without_local_steps_is_exposed_as_a_whole() -> None:
    pace = {"exposed": [5.0, 10.0], "interval": [1.0, 1.0]}
    after, whole = race.exposed_rows({}, [watched(paces=[pace, pace], ends=[6.0, 12.0])])
    assert after.value == whole.value == pytest.approx(10.0 / 12.0)
    assert after.met is False


def test_a_method_that_never_gets_there_has_lost() -> None:
    rows = race.against_rows({}, {race.DENSE: [90.0, 91.0], race.AUTO: [30.0, 29.0]})
    met = {(row.params["method"], row.params["against"]): row.met for row in rows}
    assert met[race.AUTO, race.DENSE] is True
    assert met[race.BOTH, race.AUTO] is False


def test_one_lucky_seed_decides_nothing() -> None:
    rows = race.against_rows({}, {race.DENSE: [90.0, 91.0, 92.0], race.AUTO: [20.0, 40.0, 41.0]})
    assert next(row for row in rows if row.params["against"] == race.DENSE).met is False
