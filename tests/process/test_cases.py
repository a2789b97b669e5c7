"""Runs the programs of tests/cases."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from run_cases import programs, run_case  # noqa: E402

pytestmark = pytest.mark.usefixtures("warm_ranks")

LIMIT_SECONDS = 150.0


@pytest.mark.parametrize("program", programs([ROOT / "tests/cases"]), ids=lambda path: path.stem)
def test_case(program: Path) -> None:
    """A program exits with 0, or reports that this machine cannot tell."""
    verdict = run_case(program, LIMIT_SECONDS)
    if verdict.word == "cannot tell":
        pytest.skip(verdict.output[-500:])
    assert verdict.word == "right", verdict.output[-6000:]


def test_runner_tells_outcomes_apart(tmp_path: Path) -> None:
    """Exit status 0 is right, 77 is "cannot tell"; any other status, and a program that never ends, is wrong."""
    outcomes = {}
    for name, text in {"a": "pass", "b": "exit(77)", "c": "exit(1)", "d": "import signal; signal.pause()"}.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        outcomes[name] = run_case(path, 10.0 if name != "d" else 1.0).word
    assert outcomes == {"a": "right", "b": "cannot tell", "c": "wrong", "d": "wrong"}
