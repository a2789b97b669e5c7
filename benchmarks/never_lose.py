"""`auto` against the best of the fixed settings: step times of real trainings, by network and link.

    python -m benchmarks.never_lose [--quick] [--nets 50,200,1000,loopback] [--tasks cnn,convnet,transformer] [--resume]

On every link all settings train in the same processes and take turns; `auto` begins dense and has a number of steps to
find its plan, the others a smaller number. The best fixed setting is the one with the shortest step on that link among
those that cost a training no more accuracy than `auto` may; the setting with the shortest step of all is reported
beside it. The best setting is chosen on half of the blocks and compared with `auto` on the other half, both ways: among
similar settings, the one with the shortest median of the same blocks would be the luckiest. The bound is the step of
processes that send nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from benchmarks.common.contest import Samples, TaskCase, ratio_row
from benchmarks.common.group import Group
from benchmarks.common.rig import LOOPBACK, Contender, Options, Plan, finish, interleave, network, parse, run, say
from benchmarks.netns import Net
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import estimate, median
from benchmarks.training import compression_plots

NETS = ("50", "200", "1000", LOOPBACK)
RANKS = (4,)
TASKS = ("cnn", "convnet", "transformer")
BATCH, LR, MOMENTUM = 32, 0.05, 0.9
#: Steps until the learning rate reaches 0; more than any run makes.
LAST_STEP = 100_000
#: Steps until plans are final. `auto` reads a profile every 8 steps, and two profiles have to ask for a change, level
#: by level; layouts of the other settings change after steps 3, 6 and 16.
WARM_STEPS, QUICK_WARM_STEPS = 60, 36
FIXED_STEPS, QUICK_FIXED_STEPS = 24, 8
BLOCK_STEPS, BLOCKS = 5, 20
QUICK_BLOCK_STEPS, QUICK_BLOCKS = 5, 3
AUTO, ALONE = "auto", "alone"
SETTINGS = {
    "none": "none",
    "fp16": "fp16",
    "int8": "int8",
    "twobit": "twobit",
    "onebit": "onebit",
    "group_topk": "group_topk",
    "threshold_sparse": "threshold_sparse:density=0.02",
    "powersgd": "powersgd",
    AUTO: "auto",
}
FIXED = tuple(name for name in SETTINGS if name != AUTO)
#: Settings within the accuracy that `auto` may cost: docs/compression/policies.md has the figures; fp16 costs 0.04
#: points (`methods`), powersgd 0.15 in the training of that table.
WITHIN_BUDGET = ("none", "fp16", "int8", "threshold_sparse", "powersgd")
#: Share of the steps a second of the best setting that `auto` has to reach; judged by the value alone.
TARGET = 0.97


def recipe_of(case: TaskCase, how: dict[str, Any]) -> dict[str, Any]:
    """Recipe of the training, as benchmarks/training/learning.py reads it."""
    return {
        "net": case.task,
        "batch": BATCH,
        "seed": 1,
        "lr": LR,
        "momentum": MOMENTUM,
        "steps": LAST_STEP,
        "how": how,
    }


def plan_of(options: Options) -> Plan:
    """Returns the number of blocks and their steps, the same for all settings."""
    blocks, steps = (QUICK_BLOCKS, QUICK_BLOCK_STEPS) if options.quick else (BLOCKS, BLOCK_STEPS)
    return Plan(pairs=blocks, min_pairs=blocks, block_seconds=0.0, block_iterations=steps)


def warm_steps(options: Options, name: str) -> int:
    """Returns the steps of a setting that are not timed."""
    if name == AUTO:
        return QUICK_WARM_STEPS if options.quick else WARM_STEPS
    return QUICK_FIXED_STEPS if options.quick else FIXED_STEPS


def measure(options: Options, net: Net | None, case: TaskCase) -> dict[str, Any]:
    """Measures the seconds of a step of every setting in turns, and the codecs that `auto` uses at the end."""
    with Group(case.size, ["sirtaki"], net=net) as group:
        for name, text in SETTINGS.items():
            group.call("learn_prepare", system="sirtaki", name=name, recipe=recipe_of(case, {"compression": text}))
        for name in SETTINGS:
            group.call("learn_blocks", timeout=900, blocks=[[name, warm_steps(options, name)]])
        samples = interleave([Contender(name, group) for name in SETTINGS], "learn_blocks", plan_of(options))
        travel = group.call("learn_travel", name=AUTO)[0]
    return {"seconds": samples, "travel": travel}


def measure_alone(options: Options, case: TaskCase) -> list[float]:
    """Measures the seconds of a step that sends nothing: as many processes, each a job of its own."""
    with Group(case.size, [ALONE]) as group:
        group.call("learn_prepare", system=ALONE, name=ALONE, recipe=recipe_of(case, {}))
        return interleave([Contender(ALONE, group)], "learn_blocks", plan_of(options))[ALONE]


def best_fixed(samples: Samples, among: Collection[str] = WITHIN_BUDGET) -> str:
    """Returns the setting of `among` with the shortest step."""
    return min((name for name in samples if name in among), key=lambda name: median(samples[name]))


@dataclass(frozen=True)
class Contest:
    """Paired step times of the best fixed setting and of `auto`, in blocks that did not choose the best setting."""

    names: str
    fixed: list[float]
    auto: list[float]


def cross_fitted(samples: Samples, among: Collection[str] = WITHIN_BUDGET) -> Contest:
    """Chooses the best setting on every other block and compares on the rest, both ways; two choices give two names."""
    names: list[str] = []
    fixed: list[float] = []
    auto: list[float] = []
    for parity in (0, 1):
        chosen = best_fixed({name: seconds[1 - parity :: 2] for name, seconds in samples.items()}, among)
        names.append(chosen)
        fixed += samples[chosen][parity::2]
        auto += samples[AUTO][parity::2]
    return Contest(", ".join(dict.fromkeys(names)), fixed, auto)


def travel_text(rows: list[dict[str, Any]]) -> str:
    """Codecs that `auto` chose, each with its number of tensors."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["codec"]] = counts.get(row["codec"], 0) + 1
    return ", ".join(f"{count} {codec}" for codec, count in counts.items())


def rows_of(case: TaskCase, found: dict[str, Any], alone: list[float]) -> list[Row]:
    """Rows of the step times of all settings over the bound, and of `auto` against the best, the shortest and dense.

    The bound of a ratio is the ratio that an `auto` without communication would reach.
    """
    samples: Samples = found["seconds"]
    bound = estimate(alone).value
    rows = [
        make_row("step_seconds", {"setting": name, **case.params}, estimate(seconds), "s", "lower", bound=bound)
        for name, seconds in samples.items()
    ]
    params = {"setting": AUTO, **case.params, "travel": travel_text(found["travel"])}
    for metric, among, target in (
        ("rate_over_best", WITHIN_BUDGET, TARGET),
        ("rate_over_shortest", FIXED, None),
        ("rate_over_dense", ("none",), None),
    ):
        best = cross_fitted(samples, among)
        most = median(best.fixed) / bound
        rows.append(
            ratio_row(metric, params, best.fixed, best.auto, best.names, bound=most, target=target, by_value=True)
        )
    return rows


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    options, store = parse("never_lose", __doc__ or "", NETS, RANKS, ("sirtaki",), tasks=TASKS)
    tasks = options.more["tasks"][: 1 if options.quick else None]
    rows: list[Row] = []
    for size in options.ranks:
        for task in tasks:
            alone = f"{ALONE}/{size}/{task}"
            if store.samples(alone) is None:
                store.keep(alone, measure_alone(options, TaskCase(LOOPBACK, size, task)))
        for rate in options.nets:
            measure_link(options, store, [TaskCase(rate, size, task) for task in tasks])
            for task in tasks:
                case = TaskCase(rate, size, task)
                rows += rows_of(case, store.samples(case.key), store.samples(f"{ALONE}/{size}/{task}"))
    return finish(store, rows, compression_plots.never_lose)


def measure_link(options: Options, store: Store, cases: list[TaskCase]) -> None:
    """Measures the cases of one link that the store does not hold yet; each result is kept at once."""
    missing = [case for case in cases if store.samples(case.key) is None]
    if not missing:
        return
    with network(cases[0].net, cases[0].size, strict=not options.quick) as net:
        for case in missing:
            found = measure(options, net, case)
            store.keep(case.key, found)
            best = cross_fitted(found["seconds"])
            share = median(best.fixed) / median(best.auto)
            say(f"{case.key}: auto makes {share:.3f} of the steps of {best.names} ({travel_text(found['travel'])})")


if __name__ == "__main__":
    sys.exit(run(main))
