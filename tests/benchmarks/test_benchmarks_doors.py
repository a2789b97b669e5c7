"""Figures of the benchmark of one line in programs of other libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.adapters.cases import (
    ACCELERATED,
    ALONE,
    DDP,
    DEFAULT_CAP,
    DOORS,
    FSDP,
    IDLE_HOOK,
    LIGHTNING,
    OPTIMIZER,
    OURS,
    OWN,
    PLAIN,
    SETTINGS,
    SHARED,
    TORCH_CAP,
    DoorCase,
    Setting,
)
from benchmarks.adapters.figures import Training, accelerated_rows, door_rows
from benchmarks.doors import case_of, names_of, settings_key
from benchmarks.results import Row

pytestmark = pytest.mark.usefixtures("warm_ranks")

ROOT = Path(__file__).resolve().parents[2]
CURVE = [[2.0, 3.0], [4.0, 1.0]]


def training(step: float, curve: list[list[float]] | None = None) -> Training:
    return Training([5 * step, 6 * step, 7 * step, 8 * step], curve or CURVE, 100)


def rows(case: DoorCase, curve: list[list[float]] | None = None, theirs: list[list[float]] | None = None) -> list[Row]:
    known = {PLAIN: [training(1.0, theirs)] * 3, OURS: [training(0.25, curve)] * 3, ALONE: [training(0.1)]}
    return [row for row in door_rows(case, known) if row.params["way"] == OURS]


def test_first_steps_count_in_the_seconds_and_not_in_the_step() -> None:
    one = training(1.0)
    assert (one.seconds, one.step, one.loss) == (8.0, 1.0, 1.0)
    assert one.seconds_to(2.0) == 7.0
    assert one.seconds_to(0.5) is None


def test_lightning_is_judged_by_all_steps_and_fsdp_by_the_loss() -> None:
    lightning = {row.metric: row for row in rows(DoorCase("100", 4, LIGHTNING), CURVE[-1:], CURVE[-1:])}
    assert "speedup_to_loss" not in lightning
    assert (lightning["speedup"].value, lightning["speedup"].target, lightning["speedup"].bound) == (4.0, 2.0, 10.0)
    fsdp = {row.metric: row for row in rows(DoorCase("100x2", 4, FSDP))}
    assert (fsdp["speedup"].target, fsdp["speedup_to_loss"].target) == (None, 3.0)
    assert fsdp["speedup_to_loss"].value == pytest.approx(4.0)
    assert fsdp["seconds"].bound == pytest.approx(0.8)
    slower = {row.metric: row for row in rows(DoorCase("20x2", 4, FSDP))}
    assert slower["speedup_to_loss"].target is None


def test_a_training_that_misses_the_loss_has_no_speed() -> None:
    found = {row.metric: row for row in rows(DoorCase("100x2", 4, FSDP), [[2.0, 3.0], [4.0, 1.5]])}
    assert (found["speedup_to_loss"].value, found["speedup_to_loss"].met) == (0.0, False)
    assert found["loss_above_plain"].value == pytest.approx(0.5)


def test_a_step_of_ddp_may_take_three_percent_more_than_that_of_the_optimizer() -> None:
    samples = {ACCELERATED: [1.02] * 4, OPTIMIZER: [1.0] * 4, PLAIN: [3.0] * 4, IDLE_HOOK: [0.6] * 4, ALONE: [0.5] * 4}
    case = DoorCase("100", 4, DDP)
    found = {row.metric: row for row in accelerated_rows(case, Setting("auto"), samples)}
    assert found["step_over_optimizer"].met is True
    assert found["step_speedup"].bound == 6.0
    worse = {row.metric: row for row in accelerated_rows(case, Setting("auto"), {**samples, ACCELERATED: [1.05] * 4})}
    assert worse["step_over_optimizer"].met is False
    noisy = [1.02, 1.07, 1.12, 1.17]
    far = {row.metric: row for row in accelerated_rows(case, Setting("auto"), {**samples, ACCELERATED: noisy})}
    assert far["step_over_optimizer"].spread["low"] <= 1.03 < far["step_over_optimizer"].value
    assert far["step_over_optimizer"].met is False


def test_a_hook_that_sends_nothing_bounds_the_steps_of_ddp() -> None:
    names = (ACCELERATED, OPTIMIZER, PLAIN, IDLE_HOOK, ALONE)
    samples = {name: [seconds] * 4 for name, seconds in zip(names, (1.0, 0.9, 3.0, 0.6, 0.5), strict=True)}
    rows_in_turns = accelerated_rows(DoorCase("100", 4, DDP), Setting("none"), samples)
    turns = {row.params["way"]: row for row in rows_in_turns if row.metric == "turn_seconds"}
    assert turns[IDLE_HOOK].value == 0.6
    assert [turns[name].bound for name in names] == [0.6, 0.5, 0.6, 0.5, 0.5]


def test_steps_are_compared_by_buckets_and_processors() -> None:
    case = DoorCase("100", 4, DDP)
    assert {(one.compression, one.bucket_cap_mb, one.processors) for one in SETTINGS} == {
        (compression, cap, processors)
        for compression in ("none", "auto")
        for cap in (DEFAULT_CAP, TORCH_CAP)
        for processors in (SHARED, OWN)
    }
    assert len({settings_key(case, one) for one in SETTINGS}) == len(SETTINGS)
    assert Setting("auto").of_ddp == {}
    assert Setting("auto", TORCH_CAP).of_ddp == {"bucket_cap_mb": 25.0}
    assert "replayed" not in Setting("auto").of_recipe
    samples = dict.fromkeys((ACCELERATED, OPTIMIZER, PLAIN, IDLE_HOOK, ALONE), [1.0] * 4)
    found = accelerated_rows(case, Setting("none", TORCH_CAP, OWN), samples)
    assert {(row.params["bucket_cap_mb"], row.params["ranks"]) for row in found} == {(TORCH_CAP, 2)}


def test_the_bound_takes_part_once_and_the_order_alternates() -> None:
    cases = [case_of("100", 4, door) for door in DOORS]
    assert [case.net for case in cases] == ["100", "100", "100", "100x2"]
    orders = {tuple(names_of(cases[0], 10, seed, 1)) for seed in (2, 3)}
    assert orders == {(PLAIN, OURS), (OURS, PLAIN)}
    assert names_of(cases[0], 10, 1, 1) == [OURS, PLAIN, ALONE]


def test_a_quick_run_writes_rows_and_keeps_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sirtaki")
    command = [sys.executable, "-m", "benchmarks.doors", "--quick", "--nets", "loopback", "--results", str(tmp_path)]
    command += ["--doors", "ddp", "--ranks", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "step_over_optimizer" in done.stdout
    assert IDLE_HOOK in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["doors.json"]
