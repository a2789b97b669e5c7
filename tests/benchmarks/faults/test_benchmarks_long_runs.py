"""The parts of the benchmark of elastic training that last: their rows, and jobs side by side."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from false_rank import RANK

from benchmarks import netns
from benchmarks.faults import analysis, figures, jobs, long_runs
from benchmarks.faults.records import Line
from benchmarks.faults.storm import Storm, rage_together
from benchmarks.results import Store

ROOT = Path(__file__).resolve().parents[3]


def figures_of_a_storm(**more: object) -> dict[str, object]:
    """Figures of 100 s at 320 samples a second, unless told otherwise."""
    known = {"samples": 32000, "seconds": 100.0, "final_loss": 0.2, "recovery": [0.2], "returns": [5.0]}
    counts = dict.fromkeys(("unrecovered", "restarted", "unequal", "lost", "doubled", "left"), 0)
    known |= {"lost_steps": [1], "join_gaps": [0.3], "ended": "", "epochs": 1, "faults": [], "curve": []}
    return {**known, **counts, **more}


def test_the_final_loss_is_that_of_kept_commits() -> None:
    def line(step: int, loss: float | None, generation: int = 1) -> Line:
        return Line(float(step), 10, 0, generation, step, 4, step, True, 0, 0, [0], 0.0, loss)

    lines = [line(1, 3.0), line(2, None), line(3, 2.0), line(4, 1.0), line(5, 9.0), line(5, 0.5, 2)]
    assert analysis.final_loss(lines, 2) == pytest.approx(0.75)
    assert analysis.final_loss(lines, 9) == pytest.approx(6.5 / 4)
    assert analysis.final_loss([replace(one, loss=None) for one in lines], 2) is None


def test_a_storm_is_judged_by_the_same_training_without_faults() -> None:
    calm = figures_of_a_storm()
    good = figures_of_a_storm(samples=31000, final_loss=0.201, calm_loss=0.2)
    for storm, met in ((good, True), ({**good, "samples": 28000, "final_loss": 0.23}, False)):
        rows = {row.metric: row for row in figures.hour_rows({"system": "sirtaki"}, storm, calm, 0.95)}
        assert (rows["samples_kept"].met, rows["loss_over_calm"].met) == (met, met)
        assert rows["samples_lost"].met is True
    (wrong,) = [row for row in figures.hour_rows({}, {**good, "doubled": 1}, calm, 0.95) if row.met is False]
    assert wrong.metric == "samples_doubled"


def test_joins_and_evictions_are_judged() -> None:
    params = {"step_seconds": 0.1}
    found = {row.metric: row.met for row in figures.join_rows(params, figures_of_a_storm())}
    assert found["join_gap_seconds"] is True
    found = {row.metric: row.met for row in figures.join_rows(params, figures_of_a_storm(join_gaps=[0.3, 0.6]))}
    assert found["join_gap_seconds"] is False
    for epochs, met in ((1, True), (2, False)):
        rows = {row.metric: row.met for row in figures.crowd_rows({}, figures_of_a_storm(epochs=epochs))}
        assert rows["evictions"] is met


def test_a_job_that_fails_calls_the_others_off() -> None:
    def goes_on(called_off: Callable[[], bool]) -> Storm:
        while not called_off():
            pass
        return Storm()

    def fails(called_off: Callable[[], bool]) -> Storm:
        raise OSError("no such job")

    with pytest.raises(OSError, match="no such job"):
        rage_together({"fails": fails, "goes on": goes_on})
    assert rage_together({"one": lambda _: Storm(left=1), "two": lambda _: Storm(left=2)})["two"].left == 2


class FalseJob:
    """Ranks that know nothing of each other, in place of a job of sirtakirun."""

    def __init__(
        self, folder: Path, ranks: int, recipe: dict[str, int], _elastic: str, *, spares: int = 0, inside: object = ()
    ) -> None:
        del spares
        command, steps = [*inside, sys.executable, "-c", RANK, str(folder)], str(recipe.get("steps", 0))
        self._ranks = [subprocess.Popen([*command, str(slot), str(ranks), steps], cwd=ROOT) for slot in range(ranks)]

    def tend(self) -> None:
        return None

    def wait(self, seconds: float) -> int:
        return max(rank.wait(seconds) for rank in self._ranks)

    def end(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.wait()


def test_all_storms_of_an_hour_run_at_once_and_have_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := netns.unavailable_reason():
        pytest.skip(reason)
    for module in (jobs, long_runs):
        monkeypatch.setattr(module, "SirtakiJob", FalseJob)
    monkeypatch.setattr(long_runs, "QUICK_SECONDS", 0.5)
    store = Store("churn", "a command", folder=tmp_path, resume=False)
    found = long_runs.measure_hour(store, {"least": 2, "pace": 0.1}, 4, quick=True)
    assert [(name, len(found[name]["faults"])) for name in sorted(found)] == [("kill", 1), ("mixed", 1), ("spare", 1)]
    assert [found[name]["calm_loss"] for name in found] == [1.0] * 3
    rows = long_runs.hour_rows(found, {"step_seconds": 0.1}, 200.0)
    named = {(row.params["system"], row.params["faults"]) for row in rows}
    kill, mixed = figures.HOUR_KILL, figures.HOUR_MIXED
    assert named == {("sirtaki", kill), ("sirtaki_spare", kill), ("sirtaki", mixed)}
    assert long_runs.measure_hour(store, {"pace": 0.1}, 4, quick=True) == found, "an interrupted run has these storms"
