"""Merges of local models: cost of correction, delay and interval, gain of outer momentum, faults that guards prevent.

    python -m benchmarks.local_merges [--quick] [--parts ablation,outer,drills] [--resume]

Four ranks on loopback. Intervals are fixed, so no measured time affects the results. See benchmarks/local/; results
that depend on the link are in benchmarks/local_updates.py.
"""

from __future__ import annotations

import sys

from benchmarks.common.rig import finish, parse, run
from benchmarks.local import ablation, drills, outer, plots
from benchmarks.results import Row

PARTS = ("ablation", "outer", "drills")
SEEDS = (1, 2, 3)
QUICK_STEPS = 60


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    options, store = parse("local_merges", __doc__ or "", (), (4,), ("sirtaki",), parts=PARTS)
    seeds = SEEDS[:1] if options.quick else SEEDS
    rows: list[Row] = []
    if "ablation" in options.more["parts"]:
        ablation.measure(store, seeds, QUICK_STEPS if options.quick else ablation.TASK.steps)
        rows += ablation.rows(store, seeds)
    if "outer" in options.more["parts"]:
        outer.measure(store, seeds, QUICK_STEPS if options.quick else None)
        rows += outer.rows(store, seeds)
    if "drills" in options.more["parts"]:
        drills.measure(store, seeds, options.quick)
        rows += drills.rows(store, seeds, options.quick)
    return finish(store, rows, plots.local_merges)


if __name__ == "__main__":
    sys.exit(run(main))
