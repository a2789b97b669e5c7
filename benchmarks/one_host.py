"""A training step with all ranks on one host: Sirtaki with its defaults against the DDP of torch and Horovod.

    python -m benchmarks.one_host [--quick] [--ranks 4] [--tasks cnn,convnet,transformer] [--resume]

`gloo` is DDP on Gloo. `alone` is as many processes that send nothing: the lower bound of a step. Both share worker
processes with Sirtaki; Horovod 0.28.1 has processes of its own interpreter, stopped while the others are measured, and
is left out where benchmarks/baselines/horovod.sh has not been run.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.common import plots
from benchmarks.common.contest import HOROVOD, Samples, TaskCase, measure_missing, ratio_row
from benchmarks.common.rig import LOOPBACK, Contender, Options, Plan, finish, interleave, parse, run
from benchmarks.results import Row, make_row
from benchmarks.statistics import estimate

OURS, DDP, ALONE = "sirtaki", "gloo", "alone"
RANKS = (4,)
TASKS = ("cnn", "convnet", "transformer")
BATCH, LR, SEED = 32, 0.05, 1
WARM_STEPS, BLOCK_STEPS, BLOCKS = 20, 10, 20
NEVER_SLOWER = 1.0
#: Target of the speed-up over Horovod, by net; `cnn` is the small convolutional net.
OVER_HOROVOD = {"cnn": 2.5}


def recipe_of(task: str) -> dict[str, Any]:
    """Recipe of the training, as benchmarks/training/learning.py reads it."""
    return {"net": task, "batch": BATCH, "seed": SEED, "lr": LR, "momentum": 0.9, "steps": 10_000}


def measure_case(options: Options, contenders: list[Contender], case: TaskCase) -> Samples:
    """Measures the seconds of a step of every system, block by block in turns."""
    steps, blocks = (3, 2) if options.quick else (BLOCK_STEPS, BLOCKS)
    for contender in contenders:
        contender.group.call("learn_prepare", system=contender.name, name=contender.name, recipe=recipe_of(case.task))
    plan = Plan(pairs=blocks, min_pairs=blocks, block_seconds=0.0, block_iterations=steps)
    warm = replace(plan, pairs=1, min_pairs=1, block_iterations=3 if options.quick else WARM_STEPS)
    interleave(contenders, "learn_blocks", warm)
    samples = interleave(contenders, "learn_blocks", plan)
    for contender in contenders:
        contender.group.call("learn_drop", names=[contender.name])
    return samples


def rows_of(case: TaskCase, samples: Samples) -> list[Row]:
    """Rows of the seconds of a step by system, and of the speed-up of Sirtaki over the others."""
    bound = estimate(samples[ALONE]).value if ALONE in samples else None
    rows = [
        make_row("step_seconds", {"system": system, **case.params}, estimate(seconds), "s", "lower", bound=bound)
        for system, seconds in samples.items()
    ]
    targets = {DDP: NEVER_SLOWER, HOROVOD: OVER_HOROVOD.get(case.task, NEVER_SLOWER)}
    for baseline, target in targets.items():
        if OURS in samples and baseline in samples:
            limit = None if bound is None else estimate(samples[baseline]).value / bound
            metric = f"speedup_over_{'ddp' if baseline == DDP else baseline}"
            ours, theirs = samples[OURS], samples[baseline]
            rows.append(ratio_row(metric, case.params, theirs, ours, baseline, bound=limit, target=target))
    return rows


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    systems = (OURS, DDP, HOROVOD, ALONE)
    options, store = parse("one_host", __doc__ or "", (LOOPBACK,), RANKS, systems, tasks=TASKS)
    rows: list[Row] = []
    for size in options.ranks:
        cases = [TaskCase(LOOPBACK, size, task) for task in options.more["tasks"]]
        measure_missing(options, store, cases, partial(measure_case, options))
        rows += [row for case in cases for row in rows_of(case, store.samples(case.key))]
    return finish(store, rows, plots.one_host)


if __name__ == "__main__":
    sys.exit(run(main))
