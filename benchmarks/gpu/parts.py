"""Parts of benchmarks/gpu/run.sh: their targets, commands, requirements and limits."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.build import PACKAGE
from benchmarks.gpu.keeper import ask

TOOLS = ("memcheck", "racecheck", "initcheck")
#: Elements of an array under a tool that checks every memory access.
SMALL = "20000"
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True)
class Plan:
    """Settings of a run, from the command line."""

    build: Path
    results: Path
    quick: bool


@dataclass(frozen=True)
class Part:
    """Commands whose exit status is 0 if the part passes; each of them is ended after `limit` seconds.

    `missing`: returns the reason why the part cannot run here, an empty text if it can.
    """

    name: str
    targets: tuple[str, ...]
    commands: Callable[[Plan], list[list[str]]]
    limit: int
    missing: Callable[[Mapping[str, str]], str] = lambda _environment: ""
    result: str = ""


def module(name: str, plan: Plan, *arguments: str, writes: bool = False) -> list[str]:
    """Command line of a module of this folder; `writes`: the module writes a result file."""
    more = [*(["--quick"] if plan.quick else []), "--results", str(plan.results)] if writes else []
    return [sys.executable, "-m", f"benchmarks.gpu.{name}", *arguments, *more]


def sanitizer() -> str:
    """Path of compute-sanitizer, on the PATH or beside nvcc; empty if it is missing."""
    beside = Path(os.path.realpath(shutil.which("nvcc") or "nvcc")).with_name("compute-sanitizer")
    return shutil.which("compute-sanitizer") or (str(beside) if beside.is_file() else "")


def without_sanitizer(_environment: Mapping[str, str]) -> str:
    """Reason to leave a part out if compute-sanitizer is missing; else empty."""
    return "" if sanitizer() else "compute-sanitizer is neither on the PATH nor beside nvcc"


def without_torch(_environment: Mapping[str, str]) -> str:
    """Reason to leave a part out if torch is missing or does not see the GPU; else empty."""
    if importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no torch"
    seen = [sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]
    try:
        return "" if ask(seen).returncode == 0 else "torch sees no GPU"
    except subprocess.TimeoutExpired as hung:
        return f"torch has not told in {hung.timeout:.0f} s whether it sees a GPU. Likely cause: the driver hangs"


def without_data(environment: Mapping[str, str]) -> str:
    """Reason to leave a part out if torch, its GPU or the training data are missing; else empty."""
    folder = Path(environment.get("FASHION_MNIST", FASHION_MNIST))
    return without_torch(environment) or ("" if folder.is_dir() else f"no training data in {folder}")


def _kernels(plan: Plan) -> list[list[str]]:
    return [[str(plan.build / "tests/device/cuda_device_test"), "--gtest_brief=1"]]


def _sanitizer(plan: Plan) -> list[list[str]]:
    checked = [*_kernels(plan)[0], SMALL]
    return [[sanitizer(), "--tool", tool, "--error-exitcode", "1", *checked] for tool in TOOLS]


def _program(plan: Plan, name: str) -> list[str]:
    return ["--program", str(plan.build / "benchmarks/gpu" / name)]


def _tensors(plan: Plan) -> list[list[str]]:
    return [module("correctness", plan), module("correctness", plan, "--nccl")]


PARTS = (
    Part("kernels", ("sirtaki_cuda", "cuda_device_test"), _kernels, 120),
    Part(
        "nccl",
        ("sirtaki_cuda", "nccl_smoke"),
        lambda plan: [module("smoke", plan, *_program(plan, "nccl_smoke"))],
        90,
    ),
    Part("tensors", (PACKAGE,), _tensors, 240, without_torch),
    Part("sanitizer", ("sirtaki_cuda", "cuda_device_test"), _sanitizer, 120, without_sanitizer),
    Part(
        "timing",
        ("sirtaki_cuda", "cuda_timings"),
        lambda plan: [module("report", plan, *_program(plan, "cuda_timings"), writes=True)],
        600,
        result="gpu_kernels",
    ),
    Part(
        "training",
        (PACKAGE,),
        lambda plan: [module("training", plan, writes=True)],
        600,
        without_data,
        "gpu_training",
    ),
)
