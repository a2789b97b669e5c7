"""Figures of the benchmark of a link whose bandwidth changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import importance
from benchmarks.common.rig import Options
from benchmarks.results import Row, Store
from benchmarks.training import trainings


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


def measured(folder: Path, names: Sequence[str], slowness: Sequence[float] = (1.0, 1.0)) -> list[Row]:
    """Returns rows of a quick run in which every method ends at its own loss; `slowness` is a time factor, by seed."""
    store = Store("importance", "python -m benchmarks.importance --quick", folder=folder)
    options = Options(quick=True, nets=("100",), ranks=(4,), systems=("sirtaki",), horovod_python=None, more={})
    ends = {"dense": 2.0, "10%": 2.01, "zero": 3.0, "importance": 2.01, "importance_no_ef": 2.0}
    for name, seed in itertools.product(names, (1, 2)):
        losses = [5.0] * 20 + [ends[name]] * (importance.QUICK_STEPS - 20)
        if importance.METHODS[name].live:
            seconds = [0.1 * slowness[seed - 1] * (step + 1) for step in range(len(losses))]
            found = {"losses": losses, "ends": seconds, "sent": [100] * len(losses), "changes": [2.0, 4.0]}
            store.keep(importance.key_of(name, seed), found)
        else:
            store.trainings.keep(importance.loss_key(name, 4, importance.QUICK_STEPS, seed), losses)
    for rate, seed in itertools.product((importance.NETS[0], importance.SLOW), (1, 2)):
        slow = slowness[seed - 1]
        store.keep(importance.steps_key(rate, seed), {"dense": [0.2 * slow] * 3, "10%": [0.1 * slow] * 3})
    store.keep(importance.ALONE, [0.05] * 3)
    return importance.rows_of(options, store, 4, names, (1, 2))


def test_a_control_that_ends_as_well_is_a_miss(tmp_path: Path) -> None:
    rows = measured(tmp_path, ["dense", "10%", "zero", "importance", "importance_no_ef"])
    edges = {r.params["method"]: r for r in rows if r.metric == "control_loss_excess_lower_edge"}
    assert {name: row.met for name, row in edges.items()} == {"zero": True, "importance_no_ef": False}
    assert all(row.params["against"] == "importance" for row in edges.values())


def test_a_machine_that_is_slow_for_a_seed_is_so_for_all_that_is_compared(tmp_path: Path) -> None:
    for slowness in ((1.0, 1.0), (1.0, 1.5)):
        rows = measured(tmp_path / str(slowness), ["dense", "10%", "importance"], slowness)
        over = [row for row in rows if row.metric == "over_oracle"]
        assert [{round(v, 6) for v in (row.value, *row.spread.values())} for row in over] == [{1.0}]


def test_seconds_have_those_of_steps_that_send_nothing_as_their_bound(tmp_path: Path) -> None:
    rows = measured(tmp_path, ["dense", "10%", "importance"])
    assert {row.bound for row in rows if row.metric == "step_seconds"} == {0.05}
    to_target = {row.params["method"]: row for row in rows if row.metric == "seconds_to_target"}
    assert set(to_target) == {"dense", "10%", "importance"}
    assert all(row.bound is not None and row.bound < row.value for row in to_target.values())
