"""Wake-ups of Sirtaki while no operation runs, and memory that it takes while operations run.

    python -m benchmarks.idle [--quick] [--ranks 2,4]

Wake-ups are voluntary context switches of the runtime's threads by /proc, in seconds in which no operation is
submitted. Memory is the growth of the peak resident memory of a rank over the memory before, tensors included.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.common.group import Group
from benchmarks.common.proc import wakeups_per_second
from benchmarks.common.rig import LOOPBACK, Options, finish, parse, run, say
from benchmarks.results import Row, make_row
from benchmarks.statistics import estimate
from benchmarks.training.shapes import equal_layers

OURS = "sirtaki"
RANKS = (2, 4)
#: Name of a thread of the runtime -> the most wake-ups a second that the thread may take when idle.
LIMITS = {"srt-loop": 0.0, "srt-control": 10.0}
MB = 1024 * 1024
DENSE_BYTES = 64 * MB
SMALL_TENSORS, SMALL_NUMEL = 1000, 1024
_SIZE_UNITS = {"KiB": 1024, "MiB": MB, "GiB": 1024 * MB, "B": 1}


def parse_bytes(value: Any) -> int:
    """ "16MiB" or 16777216 -> 16777216."""
    text = str(value).strip()
    for unit, factor in _SIZE_UNITS.items():
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * factor)
    return int(text)


def idle_samples(group: Group, seconds: float, times: int) -> dict[str, list[float]]:
    """Measures wake-ups a second by thread name: for each interval, those of the rank with the most wake-ups."""
    samples: dict[str, list[float]] = {}
    before = group.call("counters")
    for _ in range(times):
        time.sleep(seconds)
        after = group.call("counters")
        rates = [wakeups_per_second(b, a) for b, a in zip(before, after, strict=True)]
        for name in {name for rate in rates for name in rate}:
            samples.setdefault(name, []).append(max(rate.get(name, 0.0) for rate in rates))
        before = after
    return samples


def idle_rows(params: dict[str, Any], samples: dict[str, list[float]]) -> list[Row]:
    """Returns a row for every thread of the runtime; raises an error if a thread with a limit does not exist."""
    missing = [name for name in LIMITS if name not in samples]
    if missing:
        raise SystemExit(f"no thread named {missing}; there are {sorted(samples)}")
    return [
        make_row(
            "idle_wakeups",
            {**params, "thread": name},
            estimate(samples[name]),
            "1/s",
            "lower",
            bound=0.0,
            target=LIMITS.get(name),
        )
        for name in sorted(samples)
        if name in LIMITS or name.startswith("srt-")
    ]


def _growth(group: Group, what: str, repeats: int, **arguments: Any) -> list[float]:
    growth = []
    for _ in range(repeats):
        before = [counters["rss"] for counters in group.call("counters", reset_peak=True)]
        group.call(what, **arguments)
        after = [counters["peak_rss"] for counters in group.call("counters")]
        growth.append(float(max(0, *(a - b for a, b in zip(after, before, strict=True)))))
    return growth


def memory_samples(group: Group, repeats: int) -> dict[str, list[float]]:
    """Measures the largest growth of all ranks in bytes, by workload; only the first run of a workload grows."""
    blocks = [[OURS, 2]]
    group.call("touch", numel=DENSE_BYTES // 4)
    dense = _growth(group, "allreduce_blocks", repeats, numel=DENSE_BYTES // 4, blocks=blocks)
    sizes = [numel for layer in equal_layers(SMALL_TENSORS, SMALL_NUMEL, 1) for numel in layer]
    group.call("many_prepare", sizes=sizes, seed=1)
    small = _growth(group, "many_blocks", repeats, blocks=blocks)
    return {"dense": [max(dense)], "small": [max(small)]}


def memory_rows(params: dict[str, Any], samples: dict[str, list[float]], credit: int) -> list[Row]:
    """Rows of the growth against twice the credit window plus the fusion buffers."""
    fused = {"dense": 0, "small": 4 * SMALL_TENSORS * SMALL_NUMEL}
    return [
        make_row(
            "engine_memory",
            {**params, "workload": workload, "credit_bytes": credit, "fused_bytes": fused[workload]},
            estimate(samples[workload]),
            "bytes",
            "lower",
            target=float(2 * credit + fused[workload]),
        )
        for workload in samples
    ]


def measure(options: Options, size: int) -> dict[str, Any]:
    """Measures wake-ups and memory for one number of ranks."""
    seconds, times = (1.0, 2) if options.quick else (2.0, 5)
    with Group(size, [OURS]) as group:
        credit = parse_bytes(group.call("option", system=OURS, name="schedule.credit_bytes")[0])
        memory = memory_samples(group, 2 if options.quick else 3)
        time.sleep(1.0)
        return {"idle": idle_samples(group, seconds, times), "memory": memory, "credit": credit}


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    options, store = parse("idle", __doc__ or "", (LOOPBACK,), RANKS, (OURS,))
    rows: list[Row] = []
    for size in options.ranks:
        key = f"{size}"
        if store.samples(key) is None:
            say(f"{size} ranks")
            store.keep(key, measure(options, size))
        found = store.samples(key)
        params = {"net": LOOPBACK, "ranks": size}
        rows += idle_rows(params, found["idle"]) + memory_rows(params, found["memory"], found["credit"])
    return finish(store, rows)


if __name__ == "__main__":
    sys.exit(run(main))
