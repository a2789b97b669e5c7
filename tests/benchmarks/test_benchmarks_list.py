"""The list of benchmarks is the one that the README documents, and names every module that measures."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.__main__ import BENCHMARKS

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def test_make_bench_runs_every_module_that_measures() -> None:
    finishes = re.compile(r"^ +(return finish\(store|path = store\.finish\()", re.M)
    measuring = {path.stem for path in FOLDER.glob("*.py") if finishes.search(path.read_text())} - {"rig"}
    assert measuring == set(BENCHMARKS)


def test_readme_has_the_command_of_each() -> None:
    documented = re.findall(r"^\| `\.venv/bin/python -m benchmarks\.(\w+)`", (FOLDER / "README.md").read_text(), re.M)
    assert sorted(documented) == sorted(BENCHMARKS)
