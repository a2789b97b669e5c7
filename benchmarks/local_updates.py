"""Local updates on a slow link: time to the loss of synchronous training; intervals by link; costs.

    python -m benchmarks.local_updates [--quick] [--parts race,sweep,cost] [--tasks cnn,transformer] [--resume]

Four ranks. In `race` and `sweep` the interval follows the link. See benchmarks/local/; results that do not depend on
measured times are in benchmarks/local_merges.py.
"""

from __future__ import annotations

import sys

from benchmarks.common.rig import Options, finish, parse, run
from benchmarks.local import cost, plots, race
from benchmarks.results import Row, Store

NETS = (race.NET,)
PARTS = ("race", "sweep", "cost")
SEEDS = (1, 2, 3, 4, 5)
QUICK_STEPS = 60


def measure(options: Options, store: Store) -> None:
    """Measures the parts that the store does not hold yet, those that depend on measured times last."""
    parts, quick = options.more["parts"], options.quick
    seeds = SEEDS[:1] if quick else SEEDS
    if "race" in parts:
        tasks = [race.TASKS[name] for name in options.more["tasks"]]
        for task in tasks:
            race.measure_losses(store, task, seeds, QUICK_STEPS if quick else task.steps)
        for task in tasks:
            race.measure_steps(options, store, task)
            race.measure_live(options, store, task, seeds, QUICK_STEPS if quick else task.steps)
    if "sweep" in parts:
        race.measure_sweep(options, store)
    if "cost" in parts:
        cost.measure(options, store)


def rows_of(options: Options, store: Store) -> list[Row]:
    """Returns the rows of all selected parts."""
    parts = options.more["parts"]
    seeds = SEEDS[:1] if options.quick else SEEDS
    rows: list[Row] = []
    if "race" in parts:
        for name in options.more["tasks"]:
            rows += race.rows(store, race.TASKS[name], seeds)
    if "sweep" in parts:
        rows += race.sweep_rows(store)
    if "cost" in parts:
        rows += cost.rows(store)
    return rows


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    more = {"parts": PARTS, "tasks": tuple(race.TASKS)}
    options, store = parse("local_updates", __doc__ or "", NETS, (4,), ("sirtaki",), **more)
    if not options.nets:
        # This machine cannot make shaped links.
        options.more["parts"] = tuple(part for part in options.more["parts"] if part not in ("race", "sweep"))
    measure(options, store)
    return finish(store, rows_of(options, store), plots.local_updates)


if __name__ == "__main__":
    sys.exit(run(main))
