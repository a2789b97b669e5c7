"""The result file of the CUDA kernels' times, from what the program would say; the commands where there is no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.gpu import report
from benchmarks.results import Row, row_problems

SIZES = {
    "copy": 800,
    "group_topk_encode/512/5": 1200,
    "group_topk_encode/4096/41": 1200,
    "cast_to_f16": 600,
    "cub_radix_sort": 800,
}
ROUND = {
    "copy": 0.1,
    "group_topk_encode/512/5": 0.15,
    "group_topk_encode/4096/41": 0.3,
    "cast_to_f16": 0.1,
    "cub_radix_sort": 0.6,
}
CONTENT = {"device": "NVIDIA Test", "bytes": SIZES, "rounds": [ROUND] * 5}


def row(metric: str, kernel: str, group: int | None = None) -> Row:
    """The one row of a kernel."""
    (found,) = [
        r
        for r in report.rows_of(CONTENT)
        if r.metric == metric and r.params.get("kernel") == kernel and r.params.get("group") == group
    ]
    return found


def test_every_name_of_the_program_is_understood() -> None:
    source = (Path(report.__file__).parent / "timings.cu").read_text()
    names = set(re.findall(r'\badd\("(\w+)', source))
    known = {*report.NUMBERS, *report.OF_BOUND, *report.COUNTERPARTS.values(), "copy", "all_finite", "momentum_correct"}
    assert {name for name in known if not name.startswith("cast_")} == names - {"cast_to_", "cast_from_"}


def test_rows_follow_the_schema() -> None:
    for one in report.rows_of(CONTENT):
        assert row_problems(asdict(one)) == []


def test_the_bound_is_a_copy_of_as_many_bytes() -> None:
    time = row("time", "group_topk_encode", 512)
    assert abs(time.value - 0.15e-3) < 1e-12
    assert time.bound is not None
    assert abs(time.bound - 0.15e-3) < 1e-12


def test_targets_are_shares_of_the_bound() -> None:
    small, large = row("of_bound", "group_topk_encode", 512), row("of_bound", "group_topk_encode", 4096)
    assert (round(small.value, 6), small.target, small.met) == (1.0, 0.85, True)
    assert (round(large.value, 6), large.target, large.met) == (0.5, 0.75, False)
    assert row("of_bound", "cast_to_f16").met is False


def test_a_selection_is_compared_with_a_sort() -> None:
    assert round(row("over_cub", "group_topk_encode", 512).value, 6) == 4.0
    assert not [r for r in report.rows_of(CONTENT) if r.metric == "of_bound" and "cub" in r.params["kernel"]]


ROOT = Path(report.__file__).parents[2]


def test_without_a_gpu_the_command_says_so_before_it_builds(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'No devices found.'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = subprocess.run(
        [ROOT / "benchmarks/gpu/run.sh"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("run: no GPU: ")
    assert done.stdout == ""


@pytest.mark.parametrize("skipped", [False, True])
def test_what_cannot_be_compared_is_left_out_only_when_told(tmp_path: Path, skipped: bool) -> None:
    commands = {"nvidia-smi": "echo 'GPU 0: played'", "python": 'case "$1" in -c) exit 1 ;; *) echo "$@" ;; esac'}
    for name, text in {**commands, "cuda_device_test": "echo compared"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [ROOT / "benchmarks/gpu/run.sh", "--programs", tmp_path, *(["--without-torch"] if skipped else [])],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": str(tmp_path / "python")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if skipped:
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == "compared"
        assert "benchmarks.gpu.correctness" not in done.stdout
    else:
        assert done.returncode == 1
        assert "--without-torch" in done.stderr


def test_comparing_the_cpu_with_itself_finds_nothing() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.correctness", "--device", "cpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as on the CPU") == len(done.stdout.splitlines()) >= 10
