"""Times of the CUDA kernels against the bytes they have to move, primitives of CUB and operations of torch.

    python -m benchmarks.gpu.report --program build/gpu/benchmarks/gpu/cuda_timings

Started by benchmarks/gpu/run.sh. A round times every kernel once on 256 MiB of normally distributed float32, one after
the other; the rounds are the samples. A few more rounds use other sizes, and numbers of the Student t distribution,
whose outliers resemble those of gradients; their rows have the parameters `elements` and `numbers`. The bound of a
kernel is the time of a copy that reads and writes as many bytes, at the rate of the copy of the same round; the bound
counts each array once, so a kernel that reads an array twice cannot reach it. The rounds of torch follow, in a process
of their own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.rig import PAIRS, QUICK_PAIRS, say
from benchmarks.results import RESULTS, ROOT, Row, Store, make_row
from benchmarks.statistics import estimate, median, paired_ratio

COPY = "copy"
TOPK = "group_topk_encode"
#: Kernel -> names of the numbers in its name.
NUMBERS = {
    TOPK: ("group", "keep"),
    "group_topk_sum": ("group", "keep", "ranks"),
    "twobit_sum": ("ranks",),
    "scaled_encode": ("code",),
    "scaled_sum": ("code", "ranks"),
    "sparse_sum": ("ranks",),
    "cast_list": ("arrays",),
    "batched_cast": ("arrays",),
    "cub_batched_copy": ("arrays",),
    "cub_segmented_sort": ("group",),
    "filter_norms": ("filter_size",),
    "filter_select": ("filters",),
    "filter_gather": ("filter_size",),
}
#: Kernel -> share of the bound that the kernel has to reach; LARGE_GROUPS holds for group top-k of more than 1024
#: elements, MANY_ARRAYS for lists of many arrays.
OF_BOUND = {
    TOPK: 0.85,
    "twobit_encode": 0.92,
    "twobit_sum": 0.85,
    "threshold_select": 0.85,
    "sparse_sum": 0.8,
    "cast_to_f16": 0.9,
    "cast_to_bf16": 0.9,
    "cast_from_f16": 0.9,
    "cast_from_bf16": 0.9,
    "cast_list": 0.9,
    "filter_norms": 0.8,
    "outer_update": 0.92,
}
LARGE_GROUPS = 0.75
MANY_ARRAYS = 0.75
#: Kernel -> metric -> baseline that does all or a part of the work of the kernel, and the number that both names share.
COUNTERPARTS: dict[str, dict[str, tuple[str, str | None]]] = {
    TOPK: {"over_cub": ("cub_radix_sort", None), "over_cub_segmented": ("cub_segmented_sort", "group")},
    "threshold_select": {"over_cub": ("cub_select_if", None)},
    "cast_list": {"over_batched": ("batched_cast", "arrays"), "over_cub": ("cub_batched_copy", "arrays")},
}
BASELINES = {name for metrics in COUNTERPARTS.values() for name, _ in metrics.values()}
#: Variants beside the main one: log2 of the elements, and their distribution.
VARIANTS = ((24, "normal"), (28, "normal"), (26, "student_t"))
#: Number of rounds of a variant.
ROUNDS = 10
#: Way of benchmarks/gpu/baselines.py -> kernel -> target of the speed-up of the kernel.
OVER = {
    "torch": {
        TOPK: 5.0,
        "threshold_select": 3.0,
        "twobit_encode": 3.0,
        "twobit_sum": 5.0,
        "sparse_sum": 2.0,
        "cast_list": 1.5,
        "filter_norms": 2.0,
    },
    "compiled": {"twobit_encode": 1.1},
    "foreach": {"outer_update": 1.5},
    "fused": {},
}


def params_of(name: str, device: str, variant: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """ "group_topk_encode/512/5" -> kernel, group, keep, device."""
    kernel, *numbers = name.split("/")
    found = dict(zip(NUMBERS.get(kernel, ()), map(int, numbers), strict=True))
    return {"kernel": kernel, **found, "device": device, **(variant or {})}


def target_of(params: Mapping[str, Any]) -> float | None:
    """Share of the bound that a kernel has to reach; None without a target."""
    if params["kernel"] == TOPK and params["group"] > 1024:
        return LARGE_GROUPS
    if params.get("arrays", 0) >= 1000:
        return MANY_ARRAYS
    return OF_BOUND.get(params["kernel"])


def rows_of(content: Mapping[str, Any], variant: Mapping[str, Any] | None = None) -> list[Row]:
    """Rows of the time and share of the bound of every kernel, then of the ratios to its baselines.

    `variant`: parameters of rows whose numbers are not the usual ones.
    """
    device, sizes, rounds = content["device"], content["bytes"], content["rounds"]
    seconds = {name: [one[name] / 1e3 for one in rounds] for name in sizes}
    copy_rates = [sizes[COPY] / time for time in seconds[COPY]]
    rates_of_copies = estimate([r / 1e9 for r in copy_rates])
    rows = [make_row("copy_rate", {"device": device, **(variant or {})}, rates_of_copies, "GB/s", "higher")]
    for name, times in seconds.items():
        bound = sizes[name] / median(copy_rates)
        params = params_of(name, device, variant)
        rows.append(make_row("time", params, estimate(times), "s", "lower", bound=bound))
        if name == COPY or params["kernel"] in BASELINES:
            continue
        rates = [sizes[name] / time for time in times]
        share = paired_ratio(rates, copy_rates)
        goal = target_of(params)
        rows.append(
            make_row("of_bound", params, share, "ratio", "higher", baseline=(COPY, 1.0), bound=1.0, target=goal)
        )
        for metric, (other, number) in COUNTERPARTS.get(params["kernel"], {}).items():
            theirs = seconds.get(other if number is None else f"{other}/{params[number]}")
            if theirs is not None:
                ratio = paired_ratio(theirs, times)
                rows.append(make_row(metric, params, ratio, "ratio", "higher", baseline=(other, 1.0)))
    return rows


def other_rows(content: Mapping[str, Any], others: Mapping[str, Any]) -> list[Row]:
    """Rows of the time of each baseline in torch and, if a kernel does the same work, of the speed-up of the kernel."""
    rows = []
    for name in others["rounds"][0]:
        way, kernel = name.split()
        times = [one[name] / 1e3 for one in others["rounds"]]
        params = params_of(kernel, content["device"])
        rows.append(make_row("time", {**params, "by": way}, estimate(times), "s", "lower"))
        if kernel in content["bytes"] and kernel != COPY:
            ratio = paired_ratio(times, [one[kernel] / 1e3 for one in content["rounds"]])
            goal = OVER[way].get(params["kernel"])
            rows.append(make_row(f"over_{way}", params, ratio, "ratio", "higher", baseline=(way, 1.0), target=goal))
    return rows


def measure(command: Sequence[str]) -> Iterator[Any]:
    """Runs a program; yields the JSON objects that it prints, a line each, as they come. A failure ends the run."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            yield json.loads(line)
    if running.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: it ended with {running.returncode}")


def main() -> int:
    """Runs all rounds; returns 0, whatever the verdicts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.report", description=__doc__)
    parser.add_argument("--program", type=Path, required=True, help="cuda_timings")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PAIRS} rounds")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for result files")
    arguments = parser.parse_args()
    rounds = QUICK_PAIRS if arguments.quick else PAIRS
    command = "benchmarks/gpu/run.sh" + (" --quick" if arguments.quick else "")
    store = Store("gpu_kernels", command, folder=arguments.results)
    (content,) = measure([str(arguments.program), str(rounds)])
    rows = rows_of(content)
    # The result file is written after each step, so that its rows survive if the next one fails or the run is ended.
    store.finish(rows)
    for log2, numbers in () if arguments.quick else VARIANTS:
        variant = {"elements": 2**log2, "numbers": numbers}
        (other,) = measure([str(arguments.program), str(ROUNDS), str(log2), numbers])
        rows += rows_of(other, variant)
        store.finish(rows)
    if importlib.util.find_spec("torch") is None:
        say("the comparison with torch is left out: there is no torch")
    else:
        for family in measure([sys.executable, "-m", "benchmarks.gpu.baselines", str(rounds)]):
            for name, why in family["left_out"].items():
                say(f"{name} is left out: {why}")
            rows += other_rows(content, family)
            store.finish(rows)
    say(f"written: {store.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
