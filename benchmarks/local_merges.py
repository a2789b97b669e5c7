"""Merges of local models: what correction, delay and interval cost a training, and what guards save it from.

    python -m benchmarks.local_merges [--quick] [--parts ablation,drills] [--resume]

Four ranks on loopback. Intervals are fixed, so no time decides what comes out. See benchmarks/local/; what depends on
the link is in benchmarks/local_updates.py.
"""

from __future__ import annotations

import sys

from benchmarks import local_plots
from benchmarks.common.rig import finish, parse, run
from benchmarks.local import ablation, drills
from benchmarks.results import Row

PARTS = ("ablation", "drills")
SEEDS = (1, 2, 3)
QUICK_STEPS = 60


def main() -> int:
    """Measures what the command line asks for."""
    options, store = parse("local_merges", __doc__ or "", (), (4,), ("sirtaki",), parts=PARTS)
    seeds = SEEDS[:1] if options.quick else SEEDS
    rows: list[Row] = []
    if "ablation" in options.more["parts"]:
        ablation.measure(store, seeds, QUICK_STEPS if options.quick else ablation.TASK.steps)
        rows += ablation.rows(store, seeds)
    if "drills" in options.more["parts"]:
        drills.measure(store, seeds, options.quick)
        rows += drills.rows(store, seeds, options.quick)
    return finish(store, rows, local_plots.local_merges)


if __name__ == "__main__":
    sys.exit(run(main))
