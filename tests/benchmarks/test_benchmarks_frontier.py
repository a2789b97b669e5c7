"""Figures of the benchmark of seconds to one training loss."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pareto import measuring, runs
from benchmarks.pareto.entrants import (
    ALONE,
    BOTH_AUTO,
    COMPRESSION_AUTO,
    DDP,
    LOCAL_AUTO,
    METHODS,
    Case,
    methods,
    trainings,
    with_references,
)
from benchmarks.pareto.figures import Contest, any_length_rows, rows_of
from benchmarks.pareto.plots import frontier as plot
from benchmarks.pareto.runs import Pace, Run, between, composed, measured

pytestmark = pytest.mark.usefixtures("warm_ranks")

ROOT = Path(__file__).resolve().parents[2]
(TRAINING,) = trainings(["convnet_sgd"], [300])
CURVE = [[10.0, 3.0], [20.0, 2.0], [30.0, 1.0]]
LABELS = ("powersgd", "diloco")


def run(step: float, curve: list[list[float]] | None = None) -> Run:
    pace = Pace(first=[10 * step], first_sent=[100.0], blocks=[step], block_sent=[10.0])
    return composed(curve or CURVE, 0.9, pace)


def contest(net: str, steps: dict[str, float], curves: dict[str, Any] | None = None) -> Contest:
    known = {name: [run(step, (curves or {}).get(name))] * 2 for name, step in steps.items()}
    return Contest(Case(net, 4, TRAINING), known, dict.fromkeys(steps, 0.05))


def test_first_steps_count_with_the_seconds_that_they_took() -> None:
    pace = Pace(first=[5.0, 2.0], first_sent=[50.0, 20.0], blocks=[1.0, 1.2, 9.0], block_sent=[10.0, 12.0, 11.0])
    seconds, sent = pace.stretched(4)
    assert seconds == pytest.approx([5.0, 7.0, 8.2, 9.4])
    assert sent == pytest.approx([50.0, 70.0, 81.0, 92.0])
    assert pace.stretched(1) == ([5.0], [50.0])


def test_a_step_may_lie_between_two_steps() -> None:
    assert between([2.0, 3.0], 0.5) == pytest.approx(1.0)
    assert between([2.0, 3.0], 1.5) == pytest.approx(2.5)
    assert between([2.0, 3.0], 2.0) == pytest.approx(3.0)


def test_the_turns_of_other_methods_are_not_part_of_a_pace() -> None:
    # Two first steps, made in parts, then two blocks of a step that brings the ranks together and two timed ones.
    ends = [1.0, 2.0, 102.0, 103.0, 104.0, 205.0, 206.5, 208.0]
    starts = [[0, 0.5], [1, 1.25], [2, 100.0], [5, 200.0]]
    late = [[at, begin + 0.25] for at, begin in starts]
    sent = [8.0, 4.0, 9.0, 1.0, 3.0, 9.0, 2.0, 2.0]
    one = {"ends": ends, "starts": starts, "sent": sent}
    other = {"ends": [end - 0.1 for end in ends], "starts": late, "sent": [0.0] * len(sent)}
    pace = measuring.pace_of([one, other], 2)
    assert pace.first == pytest.approx([0.5, 0.75])
    assert pace.first_sent == [8.0, 4.0]
    assert pace.blocks == pytest.approx([1.0, 1.5])
    assert pace.block_sent == [2.0, 2.0]


def test_blocks_hold_whole_periods() -> None:
    assert measuring.block_steps(0.01, 1) == measuring.BLOCK_STEPS
    assert measuring.block_steps(0.01, 8) == 8
    assert measuring.block_steps(100.0, 1) == 1
    assert measuring.block_steps(100.0, 15) == 15


def test_a_measured_training_has_its_own_seconds() -> None:
    ends = [10.0, *[10.0 + i for i in range(1, 40)]]
    exposed = [float(i) for i in range(40)]
    kept = {"curve": CURVE, "ends": ends, "sent": [5] * 40, "quality": 0.5, "paces": [{"exposed": exposed}] * 4}
    one = measured(kept)
    assert (one.step, one.clock, one.seconds_at(1), one.sent_at(40)) == (1.0, runs.MEASURED, 10.0, 200.0)
    assert one.exposed == [0.0] + [1.0] * 39


def test_both_auto_is_judged_where_a_training_that_sends_nothing_is_fast_enough() -> None:
    steps = {DDP: 1.0, "powersgd_4": 0.1, "diloco": 0.12, "ours_fixed": 0.09, BOTH_AUTO: 0.08}
    for alone, wanted in ((0.05, 6.0), (0.5, None)):
        rows = {row.metric: row for row in rows_of(contest("100", {**steps, ALONE: alone})) if "speedup" in row.metric}
        assert rows["speedup_over_ddp"].value == pytest.approx(1.0 / 0.08)
        assert rows["speedup_over_ddp"].bound == pytest.approx(1.0 / alone)
        assert rows["speedup_over_ddp"].target == wanted
    rows = {row.metric: row for row in rows_of(contest("100", {**steps, ALONE: 0.08}))}
    assert rows["speedup_over_powersgd"].target == 0.97
    assert rows["speedup_over_diloco"].target == 1.3
    assert rows["speedup_over_best"].baseline == {"name": "ours_fixed", "value": 1.0}
    assert rows["speedup_over_best"].met is True


def test_a_method_that_misses_the_loss_has_no_seconds_and_says_so() -> None:
    high = {BOTH_AUTO: [[10.0, 3.0], [30.0, 2.0]], "powersgd_4": [[10.0, 3.0], [20.0, 1.1], [30.0, 1.05]]}
    found = rows_of(contest("20", {DDP: 1.0, "powersgd_4": 0.1, BOTH_AUTO: 0.1, ALONE: 0.01}, high))
    near = {row.params["method"]: row.value for row in found if row.metric == "seconds_near_loss"}
    assert sorted(near) == [ALONE, DDP, "powersgd_4"]
    assert near["powersgd_4"] == pytest.approx(1.0 + 0.1 * 19)
    mine = {row.metric: row for row in found if row.params["method"] == BOTH_AUTO}
    assert "seconds_to_loss" not in mine
    assert mine["loss_above_target"].value == pytest.approx(0.98)
    assert mine["loss_above_target"].params["reached"] == "0 of 2 seeds"
    assert (mine["speedup_over_ddp"].value, mine["speedup_over_ddp"].met) == (0.0, False)


def test_both_auto_is_judged_against_the_better_one_of_them_alone() -> None:
    steps = {DDP: 1.0, COMPRESSION_AUTO: 0.1, LOCAL_AUTO: 0.08, ALONE: 0.01}
    for both, met in ((0.079, True), (0.081, False)):
        (row,) = [row for row in rows_of(contest("20", {**steps, BOTH_AUTO: both})) if "over_single" in row.metric]
        assert (row.baseline, row.target, row.met) == ({"name": LOCAL_AUTO, "value": 1.0}, 1.0, met)
        assert row.value == pytest.approx(0.08 / both)
    high = {COMPRESSION_AUTO: [[10.0, 3.0], [30.0, 2.0]]}
    missed = rows_of(contest("20", {DDP: 1.0, COMPRESSION_AUTO: 0.1, BOTH_AUTO: 0.2, ALONE: 0.01}, high))
    assert [row for row in missed if "over_single" in row.metric] == [], "neither of them reaches the loss"


def test_powersgd_and_diloco_have_a_speed_of_zero_where_every_seed_misses_the_loss() -> None:
    high = [[10.0, 3.0], [30.0, 2.0]]
    both_miss = {"powersgd_4": high, "diloco": high}
    for alone, targets in ((0.01, {"powersgd": 1 / 1.2, "diloco": 1 / 1.3}), (0.09, dict.fromkeys(LABELS, 1 / 0.97))):
        steps = {DDP: 1.0, "powersgd_4": 0.1, "diloco": 0.1, BOTH_AUTO: 0.2, ALONE: alone}
        found = {row.metric: row for row in rows_of(contest("20", steps, both_miss))}
        for label, target in targets.items():
            assert f"speedup_over_{label}" not in found
            row = found[f"{label}_speed_over_both"]
            assert (row.value, row.better, row.target, row.met) == (0.0, "lower", pytest.approx(target), True)
    steps[ALONE] = 0.01
    all_miss = {"powersgd_4": high, BOTH_AUTO: high}
    found = {row.metric: row for row in rows_of(contest("20", steps, all_miss))}
    assert (found["powersgd_speed_over_both"].value, found["powersgd_speed_over_both"].met) == (0.0, None), "all miss"
    assert (found["speedup_over_diloco"].value, found["speedup_over_diloco"].met) == (0.0, False)
    assert "diloco_speed_over_both" not in found
    untrained = {row.metric for row in rows_of(contest("20", {DDP: 1.0, BOTH_AUTO: 0.2, ALONE: 0.01}))}
    assert not {f"{label}_speed_over_both" for label in LABELS} & untrained


def test_a_baseline_of_which_some_seeds_miss_the_loss_has_no_speed() -> None:
    made = contest("20", {DDP: 1.0, "powersgd_4": 0.1, BOTH_AUTO: 0.2, ALONE: 0.01})
    some = [made.runs["powersgd_4"][0], run(0.1, [[10.0, 3.0], [20.0, 2.5], [30.0, 2.0]])]
    found = {row.metric for row in rows_of(replace(made, runs={**made.runs, "powersgd_4": some}))}
    assert not {"speedup_over_powersgd", "powersgd_speed_over_both"} & found


def test_the_cnn_with_both_auto_is_not_to_lose_accuracy() -> None:
    for task, gained, target, met in (
        ("cnn_sgd", 0.01, 0.0, True),
        ("cnn_sgd", -0.01, 0.0, False),
        ("convnet_sgd", -0.01, None, None),
    ):
        (training,) = trainings([task], [300])
        made = contest("20", {DDP: 1.0, BOTH_AUTO: 0.1, ALONE: 0.01})
        runs = {**made.runs, BOTH_AUTO: [replace(one, quality=one.quality + gained) for one in made.runs[BOTH_AUTO]]}
        found = rows_of(Contest(Case("20", 4, training), runs, made.rates))
        (row,) = [row for row in found if row.metric == "accuracy_gained"]
        assert row.value == pytest.approx(gained)
        assert (row.unit, row.target, row.met) == ("share", target, met)
        assert row.baseline == {"name": DDP, "value": pytest.approx(0.9)}
    (training,) = trainings(["transformer_sgd"], [300])
    found = rows_of(Contest(Case("20", 4, training), made.runs, made.rates))
    assert [row for row in found if row.metric == "accuracy_gained"] == [], "it has no accuracy"


def test_the_bound_of_a_method_has_as_many_steps() -> None:
    quick = {"ours_fixed": [[9.0, 9.0], [10.0, 1.02], [30.0, 0.5]]}
    found = rows_of(contest("20", {DDP: 1.0, "ours_fixed": 0.1, ALONE: 0.01}, quick))
    seconds = {row.params["method"]: row for row in found if row.metric == "seconds_to_loss"}
    assert seconds["ours_fixed"].value == pytest.approx(1.0 + 0.1 * 9)
    assert seconds["ours_fixed"].bound == pytest.approx(0.1 + 0.01 * 9)
    assert seconds[ALONE].value == seconds[DDP].bound


def test_with_several_lengths_each_method_takes_the_one_that_reaches_the_first_target_soonest() -> None:
    (longer,) = trainings(["convnet_sgd"], [450])
    late = [[10.0, 3.0], [30.0, 1.5], [45.0, 0.9]]
    high = [[10.0, 3.0], [20.0, 2.0], [30.0, 1.5]]
    short = contest("20", {ALONE: 1.0, DDP: 10.0, "powersgd_4": 3.0, BOTH_AUTO: 1.2}, {BOTH_AUTO: high})
    names = (ALONE, DDP, "powersgd_4", BOTH_AUTO)
    slower = {name: [run(step, late)] * 2 for name, step in zip(names, (1.0, 10.0, 3.0, 1.2), strict=True)}
    long = Contest(Case("20", 4, longer), slower, short.rates)
    rows = any_length_rows([short, long])
    made = {row.params["method"]: row.params["made"] for row in rows if row.metric == "seconds_any_length"}
    assert made == {DDP: 30, "powersgd_4": 30, BOTH_AUTO: 45}, "both misses the loss in 30 steps"
    (over,) = [row for row in rows if row.metric == "speedup_over_powersgd_any_length"]
    # 29.8 steps of 3 s against 41.6 of 1.2 s, and ten times as long for each first one.
    assert over.value == pytest.approx((29.8 * 3 + 27) / ((30 + 15 * 0.48 / 0.6) * 1.2 + 10.8), rel=0.02)


def test_every_training_has_a_plot_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = rows_of(contest("20", {DDP: 1.0, BOTH_AUTO: 0.1, ALONE: 0.01}))
    rows += rows_of(contest("loopback", {DDP: 1.0, BOTH_AUTO: 0.1, ALONE: 0.01}))
    drawn = plot(tmp_path / "frontier.svg", rows)
    assert drawn == tmp_path / "frontier_convnet_sgd_300.svg"
    assert "both_auto" in drawn.read_text()


def test_ddp_and_the_bound_take_part_in_every_case() -> None:
    assert with_references(["both_auto"]) == [DDP, BOTH_AUTO, ALONE]
    assert tuple(methods(TRAINING)) == METHODS


def test_muon_steps_hidden_matrices_and_adamw_the_rest() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.training.optimizers import make_optimizer

    torch.manual_seed(7)
    model = torch.nn.Sequential()
    model.add_module("embedding", torch.nn.Embedding(4, 6))
    model.add_module("body", torch.nn.Linear(6, 6))
    optimizer = make_optimizer(model, "muon", 0.01, 0.9)
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.tensor([0, 1, 2, 3])).square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    kinds = [sorted(optimizer.state[p]) for p in model.parameters()]
    moments = ["exp_avg", "exp_avg_sq", "step"]
    assert kinds == [moments, ["momentum_buffer"], moments]
    assert len(optimizer.param_groups) == 2


def test_a_quick_run_writes_rows_and_keeps_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sirtaki")
    command = [sys.executable, "-m", "benchmarks.frontier", "--quick", "--nets", "loopback", "--results", str(tmp_path)]
    command += ["--methods", "ddp,both_auto", "--tasks", "cnn_sgd", "--ranks", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "both_auto" in done.stdout
    assert {path.suffix for path in tmp_path.iterdir()} <= {".json", ".svg"}
