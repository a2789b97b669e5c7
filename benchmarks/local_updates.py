"""Local updates: what correction, delay and interval cost; time to the same loss on a slow link; guards; costs.

    python -m benchmarks.local_updates [--quick] [--parts ablation,race,sweep,drills,cost] [--tasks cnn,transformer]
        [--resume]

Four ranks. `ablation` and `drills` have fixed intervals, so that no time decides what comes out; in `race` and `sweep`
the interval follows the link. See benchmarks/local/.
"""

from __future__ import annotations

import sys

from benchmarks import local_plots
from benchmarks.local import ablation, cost, drills, race
from benchmarks.results import Row, Store
from benchmarks.rig import Options, finish, parse, run

NETS = (race.NET,)
PARTS = ("ablation", "race", "sweep", "drills", "cost")
#: Of the race; of what has fixed intervals the first of them.
SEEDS, FIXED_SEEDS = (1, 2, 3, 4, 5), (1, 2, 3)
QUICK_STEPS = 60


def measure(options: Options, store: Store) -> None:
    """What the store lacks; at last what depends on times."""
    parts, quick = options.more["parts"], options.quick
    seeds, fixed_seeds = (SEEDS[:1], SEEDS[:1]) if quick else (SEEDS, FIXED_SEEDS)
    if "ablation" in parts:
        ablation.measure(store, fixed_seeds, QUICK_STEPS if quick else ablation.TASK.steps)
    if "drills" in parts:
        drills.measure(store, fixed_seeds, quick)
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
    """Of all parts that were asked for."""
    parts, quick = options.more["parts"], options.quick
    seeds, fixed_seeds = (SEEDS[:1], SEEDS[:1]) if quick else (SEEDS, FIXED_SEEDS)
    rows: list[Row] = []
    if "ablation" in parts:
        rows += ablation.rows(store, fixed_seeds)
    if "race" in parts:
        for name in options.more["tasks"]:
            rows += race.rows(store, race.TASKS[name], seeds)
    if "sweep" in parts:
        rows += race.sweep_rows(store)
    if "drills" in parts:
        rows += drills.rows(store, fixed_seeds, quick)
    if "cost" in parts:
        rows += cost.rows(store)
    return rows


def main() -> int:
    """Measures what the command line asks for."""
    more = {"parts": PARTS, "tasks": tuple(race.TASKS)}
    options, store = parse("local_updates", __doc__ or "", NETS, (4,), ("sirtaki",), **more)
    if not options.nets:
        # No links can be made here.
        options.more["parts"] = tuple(part for part in options.more["parts"] if part not in ("race", "sweep"))
    measure(options, store)
    return finish(store, rows_of(options, store), local_plots.local_updates)


if __name__ == "__main__":
    sys.exit(run(main))
