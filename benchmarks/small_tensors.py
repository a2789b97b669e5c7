"""Many small tensors whose order differs from rank to rank: a paced training step, and the bare operations.

    python -m benchmarks.small_tensors [--quick] [--nets loopback,1000] [--ranks 2,4] [--resume]

Sirtaki's DistributedOptimizer against torch DDP on Gloo (both in the same worker processes) and Horovod 0.28.1
(processes of its own interpreter, stopped while the others are measured). Horovod is left out where
benchmarks/baselines/horovod.sh has not been run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.common import plots
from benchmarks.common.contest import HOROVOD, NetCase, Samples, groups_of, measure_missing, ratio_row, training_samples
from benchmarks.common.rig import LOOPBACK, PAIRS, QUICK_PAIRS, Contender, Options, Plan, finish, interleave, parse, run
from benchmarks.results import Row, make_row
from benchmarks.statistics import estimate
from benchmarks.training.shapes import equal_layers, resnet50_layers

OURS, DDP = "sirtaki", "gloo"
NETS = (LOOPBACK, "1000")
RANKS = (2, 4)
#: Divisor of the 161 tensors (102 MB) of ResNet-50: 1.6 MB on 1 Gbit/s take as long as the whole on 64 Gbit/s.
RESNET_SCALE = 64
EQUAL_TENSORS, EQUAL_NUMEL, EQUAL_PER_LAYER = 1000, 1024, 10
#: Compute of a step in seconds by number of tensors; backward takes two thirds. Communication takes longer than that,
#: so compute cannot hide all of it.
STEP_SECONDS = {161: 0.010, 1000: 0.030}
STEP_OVER_DDP_TARGET = 1.05
SPEEDUP_OVER_HOROVOD_TARGET = 1.5
#: Operations by name that are in flight together, against one operation of the same bytes.
RAW_OVER_FUSED_TARGET = 1.5
SEED = 7


@dataclass(frozen=True)
class Case(NetCase):
    """`order` is "random" (each rank draws its own, every step) or "same"."""

    tensors: int
    order: str
    paced: bool

    @property
    def key(self) -> str:
        """Key of the case in the partial file."""
        return f"{super().key}/{self.tensors}/{self.order}/{'paced' if self.paced else 'raw'}"

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the case in result rows."""
        return {
            **super().params,
            "tensors": self.tensors,
            "bytes": 4 * sum(self.sizes()),
            "order": self.order,
            "compute_seconds": STEP_SECONDS[self.tensors] if self.paced else None,
            "seed": SEED,
        }

    def layers(self) -> list[list[int]]:
        """Element counts, layer by layer."""
        if self.tensors == EQUAL_TENSORS:
            return equal_layers(EQUAL_TENSORS, EQUAL_NUMEL, EQUAL_PER_LAYER)
        return resnet50_layers(RESNET_SCALE)

    def sizes(self) -> list[int]:
        """Element counts of all tensors."""
        return [numel for layer in self.layers() for numel in layer]

    def recipe(self) -> dict[str, Any]:
        """Recipe of the paced step, as benchmarks/training/paced.py reads it."""
        seconds = STEP_SECONDS[self.tensors]
        return {
            "layers": self.layers(),
            "forward_seconds": seconds / 3,
            "backward_seconds": seconds * 2 / 3,
            "order": self.order,
            "seed": SEED,
            "catch_up": True,
        }

    def bound(self) -> float | None:
        """Least seconds of a step: the larger of its compute and the wire time; None if neither is known."""
        compute = STEP_SECONDS[self.tensors] if self.paced else 0.0
        wire = 0.0 if self.net == LOOPBACK else self.wire_seconds(4 * sum(self.sizes()))
        return max(compute, wire) or None


def cases_of(net: str, size: int, quick: bool) -> list[Case]:
    """Cases to measure on one network with one number of ranks."""
    tensors = (161,) if quick else (161, EQUAL_TENSORS)
    cases = [Case(net, size, count, "random", paced) for count in tensors for paced in (True, False)]
    if not quick:
        cases.append(Case(net, size, 161, "same", True))
    return cases


def measure_case(options: Options, contenders: list[Contender], case: Case) -> Samples:
    """Measures the seconds of a paced step, or of the bare operations, by system."""
    plan = Plan(
        pairs=QUICK_PAIRS if options.quick else PAIRS,
        block_seconds=0.05 if options.quick else 0.15,
        budget_seconds=5.0 if options.quick else 40.0,
    )
    if case.paced:
        return training_samples(contenders, case.recipe(), plan)
    for group in groups_of(contenders):
        group.call("many_prepare", sizes=case.sizes(), seed=SEED)
    for contender in contenders:
        contender.group.call("many_check", system=contender.name)
    return interleave(contenders, "many_blocks", plan)


# ---- rows ----------------------------------------------------------------------------------


def rows_of(case: Case, samples: Samples) -> list[Row]:
    """Rows of the times of each system, then of Sirtaki against the others."""
    metric = "step_seconds" if case.paced else "raw_seconds"
    params, bound = case.params, case.bound()
    names = {DDP: "ddp" if case.paced else "gloo_fused", HOROVOD: "horovod", OURS: "sirtaki"}
    reference = estimate(samples[DDP]).value if DDP in samples else None
    rows = []
    for system, seconds in samples.items():
        baseline = (names[DDP], reference) if system == OURS and reference is not None else None
        row_params = {"system": names[system], **params}
        rows.append(make_row(metric, row_params, estimate(seconds), "s", "lower", baseline=baseline, bound=bound))
    if OURS not in samples:
        return rows
    ours = samples[OURS]
    kind = "" if case.paced else "raw_"
    if reference is not None:
        target = STEP_OVER_DDP_TARGET if case.paced else RAW_OVER_FUSED_TARGET
        limit = None if bound is None else bound / reference
        name = f"{kind or 'step_'}over_{names[DDP]}"
        judged = partial(ratio_row, better="lower", bound=limit, target=target, by_value=not case.paced)
        rows.append(judged(name, params, ours, samples[DDP], names[DDP]))
    if HOROVOD in samples:
        target = SPEEDUP_OVER_HOROVOD_TARGET if case.paced else None
        limit = None if bound is None else estimate(samples[HOROVOD]).value / bound
        name = f"{kind}speedup_over_horovod"
        rows.append(ratio_row(name, params, samples[HOROVOD], ours, HOROVOD, bound=limit, target=target))
    return rows


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    options, store = parse("small_tensors", __doc__ or "", NETS, RANKS, (OURS, DDP, HOROVOD))
    if options.quick:
        options = replace(options, ranks=options.ranks[:1])
    rows: list[Row] = []
    for net_name in options.nets:
        for size in options.ranks:
            cases = cases_of(net_name, size, options.quick)
            measure_missing(options, store, cases, partial(measure_case, options))
            rows += [row for case in cases for row in rows_of(case, store.samples(case.key))]
    return finish(store, rows, plots.small_tensors)


if __name__ == "__main__":
    sys.exit(run(main))
