"""How much of the communication hides behind compute: paced steps of VGG-19, ResNet-50 and BERT-base.

    python -m benchmarks.overlap [--quick] [--models vgg19,bert_base] [--ratios 0.5,1,2] [--systems gloo,sirtaki]

`sirtaki_forward` is DistributedOptimizer with sync="forward" and nothing else, `sirtaki` its default, `gloo` torch DDP
on Gloo with its defaults, `gloo_scaled` the same with buckets divided as the model is (these four in the same worker
processes), `horovod` Horovod 0.28.1 (processes of its own, stopped while the others are measured; left out where
benchmarks/baselines/horovod.sh has not been run). Sizes are divided until a model has about 7 MB; with the rate
divided alike, communication takes as long as that of the whole model. DDP's buckets of 25 MB would hold all of such a
model, and overlap nothing, hence gloo_scaled. The compute of a step is the wire time of its gradients, divided by the
ratio; backward takes two thirds of it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks import plots
from benchmarks.bounds import step_bound
from benchmarks.group import Group
from benchmarks.layer_tables import MODELS, Model
from benchmarks.netns import Net
from benchmarks.results import Row, Store, make_row
from benchmarks.rig import Contender, Options, Plan, finish, interleave, network, parse, run, say, wire_bound
from benchmarks.statistics import estimate, paired_ratio

FORWARD, BACKWARD, DDP, SCALED, HOROVOD = "sirtaki_forward", "sirtaki", "gloo", "gloo_scaled", "horovod"
NAMES = {DDP: "ddp", SCALED: "ddp_scaled"}
NETS = ("200",)
RANKS = (4,)
SCALES = {"vgg19": 80, "resnet50": 14, "bert_base": 60}
RATIOS = ("0.5", "1", "2")
#: Share of the bound's speed that a step has to reach; DDP / bound may be missed by as much.
BOUND_SHARE = 0.93
#: Where compute hides all communication in either mode there is nothing to gain, only to lose.
NO_LOSS = 0.98
#: Plans come from measured steps; they are in place after these.
WARM_STEPS = {FORWARD: 14, BACKWARD: 14, DDP: 3, SCALED: 3, HOROVOD: 3}


@dataclass(frozen=True)
class Case:
    """One configuration. `ratio`: wire time of the gradients over the compute of a step."""

    net: str
    size: int
    model_name: str
    ratio: float

    @property
    def key(self) -> str:
        """Its name in the partial file."""
        return f"{self.net}/{self.size}/{self.model_name}/{self.ratio:g}"

    @cached_property
    def model(self) -> Model:
        """Its layers, not scaled."""
        return MODELS[self.model_name]()

    @cached_property
    def layers(self) -> list[list[int]]:
        """Element counts, layer by layer."""
        return self.model.scaled(SCALES[self.model_name])

    @cached_property
    def wire(self) -> list[float]:
        """Seconds on the link, layer by layer."""
        return [wire_bound(self.size, 4 * sum(layer), float(self.net)) for layer in self.layers]

    @property
    def compute(self) -> float:
        """Seconds of compute in a step."""
        return sum(self.wire) / self.ratio

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters in result rows."""
        return {
            "net": "netns",
            "rate_mbit": float(self.net),
            "ranks": self.size,
            "model": self.model_name,
            "ratio": self.ratio,
            "bytes": 4 * sum(map(sum, self.layers)),
            "scale": SCALES[self.model_name],
            "compute_seconds": round(self.compute, 4),
            "wire_seconds": round(sum(self.wire), 4),
        }

    def recipe(self) -> dict[str, Any]:
        """What benchmarks/paced.py makes of it."""
        return {
            "layers": self.layers,
            "names": [layer.name for layer in self.model.layers],
            "shares": self.model.forward_shares(),
            "forward_seconds": self.compute / 3,
            "backward_seconds": self.compute * 2 / 3,
            "scale": SCALES[self.model_name],
            "order": "same",
            "seed": 0,
            "catch_up": False,
        }

    def bound(self, sync: str) -> float:
        """The least seconds of a step that waits for gradients in that way."""
        shares = self.model.forward_shares()
        forward = [share * self.compute / 3 for share in shares]
        return step_bound(forward, [2 * seconds for seconds in forward], self.wire, sync)


def cases_of(options: Options, net: str, size: int) -> list[Case]:
    """What is measured on one network with one number of ranks."""
    models, ratios = options.more["models"], options.more["ratios"]
    if options.quick:
        models, ratios = models[1:2] or models, ratios[1:2] or ratios
    return [Case(net, size, model, float(ratio)) for model in models for ratio in ratios]


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
    """Prepares, checks and warms every system up, then times them in turns."""
    groups = list(dict.fromkeys(contender.group for contender in contenders))
    try:
        for contender in contenders:
            contender.group.call("training_prepare", system=contender.name, recipe=case.recipe())
            contender.group.call("training_check", system=contender.name)
            contender.group.call("training_warm", system=contender.name, steps=WARM_STEPS[contender.name])
        return interleave(contenders, "training_blocks", plan)
    finally:
        for group in groups:
            group.call("training_drop")


def measure_net(options: Options, store: Store, net_name: str, size: int) -> None:
    """All cases of one network and number of ranks."""
    cases = [case for case in cases_of(options, net_name, size) if store.samples(case.key) is None]
    if not cases:
        return
    with network(net_name, size, strict=not options.quick) as net, contenders_on(options, size, net) as contenders:
        for case in cases:
            say(case.key)
            # Two steps a block: the first, not counted, fills the pipeline.
            plan = Plan(pairs=3 if options.quick else 5, min_pairs=3, block_seconds=2 * case.compute, budget_seconds=60)
            store.keep(case.key, measure_case(contenders, case, plan))


# ---- rows ----------------------------------------------------------------------------------


def rows_of(case: Case, samples: dict[str, list[float]]) -> list[Row]:
    """Step and exposed communication of each system against the bounds, then ours against DDP."""
    references = {NAMES[system]: estimate(samples[system]).value for system in (DDP, SCALED) if system in samples}
    best = min(references.items(), key=lambda item: item[1], default=None)
    rows = []
    for system, seconds in samples.items():
        bound = case.bound("forward" if system == FORWARD else "backward")
        reference = best if system in (FORWARD, BACKWARD) else None
        target = bound / BOUND_SHARE if system == FORWARD else None
        for metric, offset in (("step_seconds", 0.0), ("exposed_seconds", case.compute)):
            rows.append(
                make_row(
                    metric,
                    {"system": NAMES.get(system, system), **case.params},
                    estimate([value - offset for value in seconds]),
                    "s",
                    "lower",
                    baseline=None if reference is None else (reference[0], reference[1] - offset),
                    bound=bound - offset,
                    target=None if target is None or offset else target,
                )
            )
    for system in (DDP, SCALED):
        if system in samples:
            rows += _ratios(case, samples, system)
    return rows


def _ratios(case: Case, samples: dict[str, list[float]], theirs: str) -> list[Row]:
    name, rows = NAMES[theirs], []
    for system, sync in ((FORWARD, "forward"), (BACKWARD, "backward")):
        if system not in samples:
            continue
        ceiling = estimate(samples[theirs]).value / case.bound(sync)
        target = NO_LOSS if system == BACKWARD or case.ratio < 1 else BOUND_SHARE * ceiling
        rows.append(
            make_row(
                f"speedup_over_{name}",
                {"system": system, **case.params},
                paired_ratio(samples[theirs], samples[system]),
                "ratio",
                "higher",
                baseline=(name, 1.0),
                bound=ceiling,
                target=target,
            )
        )
    return rows


def main() -> int:
    """Measures what the command line asks for."""
    systems = (FORWARD, BACKWARD, DDP, SCALED, HOROVOD)
    options, store = parse("overlap", __doc__ or "", NETS, RANKS, systems, models=tuple(SCALES), ratios=RATIOS)
    rows: list[Row] = []
    for net_name in options.nets:
        for size in options.ranks:
            measure_net(options, store, net_name, size)
            for case in cases_of(options, net_name, size):
                rows += rows_of(case, store.samples(case.key))
    return finish(store, rows, plots.overlap)


if __name__ == "__main__":
    sys.exit(run(main))
