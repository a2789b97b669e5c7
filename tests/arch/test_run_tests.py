"""The runner of `make test` counts the tests that ctest and pytest report, and fails if neither reports any."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import run_tests
from run_tests import Outcome, Stage, check_stages, count_tests, report, run_all, run_stage, slowest_tests, stages

SAY = (sys.executable, "-c")


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("100% tests passed, 0 tests failed out of 31\n", (31, 0, 0)),
        ("94% tests passed, 2 tests failed out of 31\n", (29, 2, 0)),
        ("12 passed in 3.40s\n", (12, 0, 0)),
        ("====== 1 failed, 12 passed, 2 skipped in 3.40s ======\n", (12, 1, 2)),
        ("3 passed, 1 error in 61.20s (0:01:01)\n", (3, 1, 0)),
        ("100% tests passed, 0 tests failed out of 3\n4 passed in 1.00s\n", (7, 0, 0)),
        ("nothing of that kind\n", (0, 0, 0)),
    ],
)
def test_closing_lines_are_counted(output: str, counts: tuple[int, int, int]) -> None:
    assert count_tests(output) == counts


def run_python(code: str, runs_tests: bool = True) -> Outcome:
    return run_stage(Stage("x", ((*SAY, code),), runs_tests=runs_tests), dict(os.environ))


def test_stage_that_ran_no_test_fails() -> None:
    outcome = run_python("print('done')")
    assert (outcome.verdict, outcome.failed) == ("failed", 1)


def test_stage_that_dies_fails_although_its_tests_passed() -> None:
    outcome = run_python("print('3 passed in 1.00s'); raise SystemExit(1)")
    assert (outcome.verdict, outcome.passed, outcome.failed) == ("failed", 3, 1)


def test_stage_without_tests_counts_as_one() -> None:
    outcome = run_python("pass", runs_tests=False)
    assert (outcome.verdict, outcome.passed, outcome.failed) == ("passed", 1, 0)


def test_stage_after_a_failed_one_is_not_run() -> None:
    stages = [Stage("a", ()), Stage("b", (), needs=("a",))]
    ran = []

    def run(stage: Stage) -> Outcome:
        ran.append(stage.name)
        return Outcome(stage.name, "failed", failed=1)

    outcomes = run_all(stages, run)
    assert ran == ["a"]
    assert [(o.verdict, o.failed) for o in outcomes] == [("failed", 1), ("not run", 1)]


def test_closing_line_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([Outcome("a", "passed", 60.0, passed=4), Outcome("b", "failed", 1.0, failed=2)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "4 passed, 2 failed"
    assert report([Outcome("a", "passed", passed=1)]) == 0


def test_the_slowest_tests_of_a_stage_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    output = (
        "38/62 Test #39: reduction_threads_conformance .......   Passed    2.80 sec\n"
        " 1/62 Test  #1: sim_test .........................***Failed  101.10 sec\n"
        "2.26s call     tests/python/test_x.py::test_y[a b]\n"
        "0.50s setup    tests/python/test_x.py::test_z\n"
    )
    slowest = slowest_tests(output)
    assert slowest == [
        (101.1, "sim_test"),
        (2.8, "reduction_threads_conformance"),
        (2.26, "tests/python/test_x.py::test_y[a b]"),
        (0.5, "tests/python/test_x.py::test_z"),
    ]
    assert len(slowest_tests(3 * output)) == 5
    report([Outcome("c++ tests", "passed", 60.0, passed=4, slowest=slowest[:1])])
    assert "c++ tests      101.1 s  sim_test\n" in capsys.readouterr().out


def test_a_check_takes_stages_of_the_whole_and_parts_of_them() -> None:
    check, whole = ({stage.name: stage for stage in make("2")} for make in (check_stages, stages))
    assert list(check) == ["lint", "package", "c++ build", "unit, sim", "training"]
    assert all(check[name] == whole[name] for name in ("package", "c++ build"))
    assert "--changed" in check["lint"].commands[0]


def test_a_stage_that_hangs_is_killed_and_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_tests, "STAGE_LIMIT_SECONDS", 0.5)
    outcome = run_python("import signal; signal.pause()")
    assert (outcome.verdict, outcome.failed) == ("failed", 1)
    assert "exited with -9, killed after its limit of " in capsys.readouterr().out
