"""Rates of the CPU kernels that compress, against the bare pass r = g + r and against std::nth_element.

    python -m benchmarks.kernels [--quick]

The program is benchmarks/native/kernels_bench, which is built when it is not there. A round runs all of it once, one
kernel after the other on 64 MiB of normally distributed float32, on one core; the rounds are the samples, so a ratio
compares runs that are seconds apart. Rates count bytes of gradient; the instruction set is a parameter of every row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.rig import PAIRS, QUICK_PAIRS, finish, say
from benchmarks.results import RESULTS, ROOT, Row, Store, make_row
from benchmarks.statistics import estimate, paired_ratio

BUILD = ROOT / "build" / "release"
PROGRAM = BUILD / "benchmarks" / "native" / "kernels_bench"
PASS = "add_pass"
TOPK, NTH = "group_topk_encode", "nth_element"
#: Kernel -> share of the rate of the bare pass that the kernel has to reach.
OVER_PASS = {"twobit_encode": 0.9}
OVER_NTH = 8.0
#: Kernel -> names of the numbers in the name of its benchmark.
NUMBERS = {
    TOPK: ("group", "keep"),
    NTH: ("group", "keep"),
    "group_topk_sum": ("group", "keep", "ranks"),
    "twobit_sum": ("ranks",),
    "onebit_sum": ("ranks",),
    "low_rank_project": ("rank",),
    "low_rank_project_back": ("rank",),
    "low_rank_rebuild": ("rank",),
    "sparse_sum": ("ranks",),
    "scaled_encode": ("code",),
    "scaled_sum": ("code", "ranks"),
    "filter_norms": ("filter_size",),
    "filter_gather": ("filter_size", "dtype"),
}


def build() -> None:
    """Builds the program without output; an error shows the messages of the compiler."""
    for command in (["cmake", "--preset", "release"], ["cmake", "--build", "--preset", "release", "-t", PROGRAM.name]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def run_round(seconds: float) -> dict[str, Any]:
    """Runs one round, each kernel for about `seconds`; returns the JSON output of the program."""
    command = [str(PROGRAM), f"--benchmark_min_time={seconds}", "--benchmark_format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def rates_of(content: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """Instruction set, and bytes a second by name ("group_topk_encode/512/5") in one round."""
    rates = {}
    target = ""
    for entry in content["benchmarks"]:
        name = entry["name"].removesuffix("/real_time")
        rates[name] = float(entry["bytes_per_second"])
        target = entry["label"] if name == PASS else target
    return target, rates


def params_of(name: str, target: str) -> dict[str, Any]:
    """ "group_topk_encode/512/5" -> kernel, group, keep."""
    kernel, *numbers = name.split("/")
    return {"kernel": kernel, **dict(zip(NUMBERS.get(kernel, ()), map(int, numbers), strict=True)), "isa": target}


def rows_of(target: str, samples: Mapping[str, Sequence[float]]) -> list[Row]:
    """Rows of the rate of every kernel, then of the ratios that have a target or a counterpart.

    The bound of the ratios is the bare pass: a kernel with error feedback reads and writes at least as many bytes.
    Kernels that write no residual may be faster.
    """
    rows = [
        make_row("rate", params_of(name, target), estimate([rate / 1e9 for rate in rates]), "GB/s", "higher")
        for name, rates in samples.items()
    ]
    for name, rates in samples.items():
        kernel = name.partition("/")[0]
        counterpart = name.replace(TOPK, NTH)
        if kernel.endswith(("_encode", "_select", "_norms", "_correct", "_project", "_project_back")):
            ratio = paired_ratio(rates, samples[PASS])
            goal = OVER_PASS.get(kernel)
            params = params_of(name, target)
            row = make_row("over_pass", params, ratio, "ratio", "higher", baseline=(PASS, 1.0), bound=1.0, target=goal)
            rows.append(row)
        if kernel == TOPK and counterpart in samples:
            ratio = paired_ratio(rates, samples[counterpart])
            params = params_of(name, target)
            bound = paired_ratio(samples[PASS], samples[counterpart]).value
            rows.append(
                make_row(
                    "over_nth_element",
                    params,
                    ratio,
                    "ratio",
                    "higher",
                    baseline=(NTH, 1.0),
                    bound=bound,
                    target=OVER_NTH,
                )
            )
    return rows


def main() -> int:
    """Runs all rounds; returns 0, whatever the verdicts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PAIRS} rounds")
    for name in ("--nets", "--ranks", "--systems"):
        parser.add_argument(name, help="of the other benchmarks; nothing to choose here")
    parser.add_argument("--resume", action="store_true", help="goes on with an interrupted run")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for result files")
    arguments = parser.parse_args()
    build()
    command = " ".join(["python", "-m", "benchmarks.kernels", *(a for a in sys.argv[1:] if a != "--resume")])
    store = Store("kernels", command, folder=arguments.results, resume=arguments.resume)
    rounds = QUICK_PAIRS if arguments.quick else PAIRS
    target, samples = "", {}
    for number in range(rounds):
        key = f"round {number}"
        if store.samples(key) is None:
            store.keep(key, run_round(0.03))
            say(f"round {number + 1} of {rounds}")
        target, rates = rates_of(store.samples(key))
        for name, rate in rates.items():
            samples.setdefault(name, []).append(rate)
    return finish(store, rows_of(target, samples))


if __name__ == "__main__":
    sys.exit(main())
