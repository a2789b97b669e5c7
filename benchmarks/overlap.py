"""Share of the communication that hides behind compute: paced steps of VGG-19, ResNet-50 and BERT-base.

    python -m benchmarks.overlap [--quick] [--models vgg19,bert_base] [--ratios 0.5,1,2] [--systems gloo,sirtaki]

The systems are: `sirtaki_forward`, DistributedOptimizer with sync="forward" and defaults for the rest; `sirtaki`, the
optimizer with all defaults; `gloo`, torch DDP on Gloo with its defaults; `gloo_scaled`, DDP whose buckets, the small
first one and the others, are divided as the model is, with gradients as views of the buckets (these four share worker
processes); `horovod`, Horovod 0.28.1 in processes of its own, stopped while the others are measured (it runs in every
third turn only, since no target refers to it, and is left out where benchmarks/baselines/horovod.sh has not been run).

Sizes are divided until a model has about 7 MB; the rate is divided by the same factor, so communication takes as long
as for the whole model. DDP buckets of 25 MB would hold all of such a model and overlap nothing, hence gloo_scaled.
Sirtaki is judged against the faster of the two, case by case. The compute of a step is the wire time of its gradients,
divided by the ratio; backward takes two thirds of the compute. `alone`, the step of processes that send nothing, shows
how exactly the paced compute is kept.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from benchmarks.common import plots
from benchmarks.common.bounds import step_bound
from benchmarks.common.contest import HOROVOD, NetCase, Samples, measure_missing, ratio_row, training_samples
from benchmarks.common.rig import Contender, Options, Plan, finish, parse, run
from benchmarks.results import Row, make_row
from benchmarks.statistics import estimate
from benchmarks.training.layer_tables import MODELS, Model

FORWARD, BACKWARD, DDP, SCALED, ALONE = "sirtaki_forward", "sirtaki", "gloo", "gloo_scaled", "alone"
NAMES = {DDP: "ddp", SCALED: "ddp_scaled"}
NETS = ("200",)
RANKS = (4,)
SCALES = {"vgg19": 80, "resnet50": 14, "bert_base": 60}
RATIOS = ("0.5", "1", "2")
#: Share of the speed of the bound that a step has to reach; the ratio DDP / bound may be missed by the same factor.
BOUND_SHARE = 0.93
#: Target of the speed-up where compute hides all communication in either mode: no gain is possible there.
NO_LOSS = 0.98
#: Steps until plans of Sirtaki, which come from measured steps, and buckets of DDP, which come from the order of the
#: first step, are final.
WARM_STEPS = {FORWARD: 14, BACKWARD: 14, DDP: 2, SCALED: 2, HOROVOD: 2, ALONE: 1}
#: Number of samples; a sample is one step, after a step that is not counted.
PAIRS, QUICK_PAIRS = 8, 3
HOROVOD_EVERY = 3


@dataclass(frozen=True)
class Case(NetCase):
    """`ratio`: wire time of the gradients over the compute of a step."""

    model_name: str
    ratio: float

    @property
    def key(self) -> str:
        """Key of the case in the partial file."""
        return f"{super().key}/{self.model_name}/{self.ratio:g}"

    @cached_property
    def model(self) -> Model:
        """Layers of the model, not scaled."""
        return MODELS[self.model_name]()

    @cached_property
    def layers(self) -> list[list[int]]:
        """Element counts, layer by layer."""
        return self.model.scaled(SCALES[self.model_name])

    @cached_property
    def wire(self) -> list[float]:
        """Seconds on the link, layer by layer."""
        return [self.wire_seconds(4 * sum(layer)) for layer in self.layers]

    @property
    def compute(self) -> float:
        """Seconds of compute in a step."""
        return sum(self.wire) / self.ratio

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the case in result rows."""
        return {
            **super().params,
            "model": self.model_name,
            "ratio": self.ratio,
            "bytes": 4 * sum(map(sum, self.layers)),
            "scale": SCALES[self.model_name],
            "compute_seconds": round(self.compute, 4),
            "wire_seconds": round(sum(self.wire), 4),
        }

    def recipe(self) -> dict[str, Any]:
        """Recipe of the paced step, as benchmarks/training/paced.py reads it."""
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
        """Returns the least seconds of a step that waits for gradients as `sync` says."""
        shares = self.model.forward_shares()
        forward = [share * self.compute / 3 for share in shares]
        return step_bound(forward, [2 * seconds for seconds in forward], self.wire, sync)


def cases_of(options: Options, net: str, size: int) -> list[Case]:
    """Cases to measure on one network with one number of ranks."""
    models, ratios = options.more["models"], options.more["ratios"]
    if options.quick:
        models, ratios = models[1:2] or models, ratios[1:2] or ratios
    return [Case(net, size, model, float(ratio)) for model in models for ratio in ratios]


def measure_case(options: Options, contenders: list[Contender], case: Case) -> Samples:
    """Measures the seconds of a step, by system."""
    pairs = QUICK_PAIRS if options.quick else PAIRS
    plan = Plan(pairs=pairs, min_pairs=pairs, block_seconds=0.0)
    return training_samples(contenders, case.recipe(), plan, WARM_STEPS)


# ---- rows ----------------------------------------------------------------------------------


def rows_of(case: Case, samples: Samples) -> list[Row]:
    """Rows of step and exposed communication of each system against the bounds, then of Sirtaki against DDP."""
    references = {system: estimate(samples[system]).value for system in (DDP, SCALED) if system in samples}
    fastest = min(references, key=lambda system: references[system], default=None)
    best = None if fastest is None else (NAMES[fastest], references[fastest])
    rows = []
    for system, seconds in samples.items():
        bound = case.compute if system == ALONE else case.bound("forward" if system == FORWARD else "backward")
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
    for theirs in references:
        rows += _speedups(f"speedup_over_{NAMES[theirs]}", case, samples, theirs, judged=False)
    if fastest is not None:
        rows += _speedups("speedup_over_best_ddp", case, samples, fastest, judged=True)
    return rows


def _speedups(metric: str, case: Case, samples: Samples, theirs: str, *, judged: bool) -> list[Row]:
    rows = []
    for system, sync in ((FORWARD, "forward"), (BACKWARD, "backward")):
        if system not in samples:
            continue
        ceiling = estimate(samples[theirs]).value / case.bound(sync)
        target = speedup_target(system, case.ratio, ceiling) if judged else None
        params = {"system": system, **case.params}
        if target is not None:
            params["claim"] = "faster" if target > 1.0 else "not slower"
        times = (samples[theirs], samples[system])
        rows.append(ratio_row(metric, params, *times, NAMES[theirs], bound=ceiling, target=target))
    return rows


def speedup_target(system: str, ratio: float, ceiling: float) -> float:
    """Least speed-up over the faster DDP. `ceiling`: step of DDP over the bound of this system.

    With per-layer waiting the target is a share of the ceiling, never below NO_LOSS; the default must not be slower.
    """
    if ratio < 1:
        return NO_LOSS
    return max(NO_LOSS, BOUND_SHARE * ceiling) if system == FORWARD else 1.0


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    systems = (FORWARD, BACKWARD, DDP, SCALED, HOROVOD, ALONE)
    options, store = parse("overlap", __doc__ or "", NETS, RANKS, systems, models=tuple(SCALES), ratios=RATIOS)
    rows: list[Row] = []
    for net_name in options.nets:
        for size in options.ranks:
            cases = cases_of(options, net_name, size)
            measure_missing(options, store, cases, partial(measure_case, options), HOROVOD_EVERY)
            rows += [row for case in cases for row in rows_of(case, store.samples(case.key))]
    return finish(store, rows, plots.overlap)


if __name__ == "__main__":
    sys.exit(run(main))
