"""The list of CUDA architectures follows from those that nvcc knows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """cmake_minimum_required(VERSION 3.25)
include({module})
sirtaki_cuda_architectures({nvcc} "{wanted}" found)
message(STATUS "found: ${{found}}")
"""
OLD = (50, 60, 70, 75, 80, 86, 89, 90)
NEW = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
ALL = "70;75;80;86;89;90;100;120"


def architectures(folder: Path, known: tuple[int, ...], wanted: str) -> tuple[str, str]:
    """Returns the list that CMake makes with an nvcc that knows these architectures, and its warnings."""
    nvcc = folder / "nvcc"
    listed = " ".join(f"sm_{number}" for number in known)
    nvcc.write_text(f"#!/bin/sh\n[ $1 = --list-gpu-code ] && printf '%s\\n' {listed}\n")
    nvcc.chmod(0o755)
    script = folder / "script.cmake"
    script.write_text(SCRIPT.format(module=ROOT / "cmake/CudaArchitectures.cmake", nvcc=nvcc, wanted=wanted))
    done = subprocess.run(["cmake", "-P", script], capture_output=True, text=True, check=True)
    return done.stdout.strip().removeprefix("-- found: "), done.stderr


@pytest.mark.parametrize(
    ("known", "wanted", "found"),
    [
        (NEW, ALL, "75-real;80-real;86-real;89-real;90-real;100-real;120"),
        (OLD, ALL, "70-real;75-real;80-real;86-real;89-real;90"),
        (NEW, "90", "90"),
        (NEW, "120;90;90", "90-real;120"),
        (NEW, "80-virtual;90-real", "80-real;90"),
    ],
)
def test_what_nvcc_knows_is_compiled_and_the_newest_serves_later_ones(
    tmp_path: Path, known: tuple[int, ...], wanted: str, found: str
) -> None:
    assert architectures(tmp_path, known, wanted) == (found, "")


def test_a_gpu_newer_than_nvcc_compiles_the_newest_itself(tmp_path: Path) -> None:
    found, warnings = architectures(tmp_path, OLD, "120")
    assert found == "90-virtual"
    assert "devices compile the kernels at their first start" in " ".join(warnings.split())


def test_ptx_is_never_newer_than_the_gpu(tmp_path: Path) -> None:
    assert architectures(tmp_path, NEW, "103;105")[0] == "103"
    assert architectures(tmp_path, NEW, "105")[0] == "103-virtual"
    with pytest.raises(subprocess.CalledProcessError) as failed:
        architectures(tmp_path, NEW, "70")
    assert "nor for an older one" in " ".join(failed.value.stderr.split())
