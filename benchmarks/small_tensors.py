"""Many small tensors whose order differs from rank to rank: a paced training step, and the bare operations.

    python -m benchmarks.small_tensors [--quick] [--nets loopback,1000] [--ranks 2,4] [--resume]

Sirtaki's DistributedOptimizer against torch DDP on Gloo (both in the same worker processes) and Horovod 0.28.1
(processes of its own interpreter, stopped while the others are measured). Horovod is left out where
benchmarks/baselines/horovod.sh has not been run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import plots
from benchmarks.group import Group
from benchmarks.netns import Net
from benchmarks.results import Row, Store, make_row
from benchmarks.rig import (
    LOOPBACK,
    PAIRS,
    QUICK_PAIRS,
    Contender,
    Options,
    Plan,
    finish,
    interleave,
    network,
    parse,
    run,
    say,
    wire_bound,
)
from benchmarks.shapes import equal_layers, resnet50_layers
from benchmarks.statistics import estimate, paired_ratio

OURS, DDP, HOROVOD = "sirtaki", "gloo", "horovod"
NETS = (LOOPBACK, "1000")
RANKS = (2, 4)
#: ResNet-50's 161 tensors, 102 MB of them, divided: 1.6 MB, as long on 1 Gbit/s as the whole on 64 Gbit/s.
RESNET_SCALE = 64
EQUAL_TENSORS, EQUAL_NUMEL, EQUAL_PER_LAYER = 1000, 1024, 10
#: Compute of a step in seconds, backward two thirds of it. Less than the tensors need: it cannot hide them.
STEP_SECONDS = {161: 0.010, 1000: 0.030}
STEP_OVER_DDP_TARGET = 1.05
SPEEDUP_OVER_HOROVOD_TARGET = 1.5
SEED = 7


@dataclass(frozen=True)
class Case:
    """One configuration. `order` is "random" (each rank draws its own, every step) or "same"."""

    net: str
    size: int
    tensors: int
    order: str
    paced: bool

    @property
    def key(self) -> str:
        """Its name in the partial file."""
        return f"{self.net}/{self.size}/{self.tensors}/{self.order}/{'paced' if self.paced else 'raw'}"

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters in result rows."""
        shaped = self.net != LOOPBACK
        return {
            "net": "netns" if shaped else LOOPBACK,
            "rate_mbit": float(self.net) if shaped else None,
            "ranks": self.size,
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
        """What benchmarks/paced.py makes of it."""
        seconds = STEP_SECONDS[self.tensors]
        return {
            "layers": self.layers(),
            "forward_seconds": seconds / 3,
            "backward_seconds": seconds * 2 / 3,
            "order": self.order,
            "seed": SEED,
        }

    def bound(self) -> float | None:
        """The least seconds a step takes: its compute, or the wire; None where neither is known."""
        compute = STEP_SECONDS[self.tensors] if self.paced else 0.0
        wire = 0.0 if self.net == LOOPBACK else wire_bound(self.size, 4 * sum(self.sizes()), float(self.net))
        return max(compute, wire) or None


def cases_of(net: str, size: int, quick: bool) -> list[Case]:
    """What is measured on one network with one number of ranks."""
    tensors = (161,) if quick else (161, EQUAL_TENSORS)
    cases = [Case(net, size, count, "random", paced) for count in tensors for paced in (True, False)]
    if not quick:
        cases.append(Case(net, size, 161, "same", True))
    return cases


@contextlib.contextmanager
def contenders_on(options: Options, size: int, net: Net | None) -> Iterator[list[Contender]]:
    """The systems asked for, each in its group."""
    with contextlib.ExitStack() as stack:
        together = [system for system in options.systems if system != HOROVOD]
        made = []
        if together:
            group = stack.enter_context(Group(size, together, net=net))
            made += [Contender(system, group) for system in together]
        if HOROVOD in options.systems:
            assert options.horovod_python is not None
            group = Group(size, [HOROVOD], net=net, python=options.horovod_python)
            made.append(Contender(HOROVOD, stack.enter_context(group)))
        yield made


def measure_case(contenders: list[Contender], case: Case, plan: Plan) -> dict[str, list[float]]:
    """Prepares and checks every system, then times them in turns."""
    groups = list(dict.fromkeys(contender.group for contender in contenders))
    if not case.paced:
        for group in groups:
            group.call("many_prepare", sizes=case.sizes(), seed=SEED)
        for contender in contenders:
            contender.group.call("many_check", system=contender.name)
        return interleave(contenders, "many_blocks", plan)
    for contender in contenders:
        contender.group.call("training_prepare", system=contender.name, recipe=case.recipe())
        contender.group.call("training_check", system=contender.name)
    try:
        return interleave(contenders, "training_blocks", plan)
    finally:
        for group in groups:
            group.call("training_drop")


def measure_net(options: Options, store: Store, net_name: str, size: int) -> None:
    """All cases of one network and number of ranks."""
    cases = [case for case in cases_of(net_name, size, options.quick) if store.samples(case.key) is None]
    if not cases:
        return
    plan = Plan(
        pairs=QUICK_PAIRS if options.quick else PAIRS,
        block_seconds=0.05 if options.quick else 0.15,
        budget_seconds=5.0 if options.quick else 40.0,
    )
    with network(net_name, size, strict=not options.quick) as net, contenders_on(options, size, net) as contenders:
        for case in cases:
            say(case.key)
            store.keep(case.key, measure_case(contenders, case, plan))


# ---- rows ----------------------------------------------------------------------------------


def rows_of(case: Case, samples: dict[str, list[float]]) -> list[Row]:
    """Times of each system, then ours against the others'."""
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
    if reference is not None:
        figure = paired_ratio(ours, samples[DDP])
        target = STEP_OVER_DDP_TARGET if case.paced else None
        limit = None if bound is None else bound / reference
        name = f"{'step' if case.paced else 'raw'}_over_{names[DDP]}"
        rows.append(
            make_row(name, params, figure, "ratio", "lower", baseline=(names[DDP], 1.0), bound=limit, target=target)
        )
    if HOROVOD in samples:
        figure = paired_ratio(samples[HOROVOD], ours)
        target = SPEEDUP_OVER_HOROVOD_TARGET if case.paced else None
        limit = None if bound is None else estimate(samples[HOROVOD]).value / bound
        name = "speedup_over_horovod" if case.paced else "raw_speedup_over_horovod"
        rows.append(
            make_row(name, params, figure, "ratio", "higher", baseline=(HOROVOD, 1.0), bound=limit, target=target)
        )
    return rows


def main() -> int:
    """Measures what the command line asks for."""
    options, store = parse("small_tensors", __doc__ or "", NETS, RANKS, (OURS, DDP, HOROVOD))
    if options.quick:
        options = replace(options, ranks=options.ranks[:1])
    rows: list[Row] = []
    for net_name in options.nets:
        for size in options.ranks:
            measure_net(options, store, net_name, size)
            for case in cases_of(net_name, size, options.quick):
                rows += rows_of(case, store.samples(case.key))
    return finish(store, rows, plots.small_tensors)


if __name__ == "__main__":
    sys.exit(run(main))
