"""Seconds and bytes to one training loss, from the first step on, by net, optimizer, link and method.

    python -m benchmarks.frontier [--quick] [--nets 5,20,100,1000,100d20,loopback] [--tasks cnn_sgd,transformer_adamw]
        [--methods ddp,both_auto] [--steps 300,450] [--seeds 1,2,3,4,5] [--tune 0.5,1,2] [--resume]

The target is the final loss of DDP of the same seed plus 0.02 nats, on a fixed sample of the training data; with local
steps the loss is that of the model that all ranks agree on, after the last step that of the drained one. Seconds begin
with the first step: warm-ups, trials of plans and first merges count; connecting and the first broadcast of the model
do not. Bytes are those at the network interface.

The parameter `clock` of a row says how its seconds come about. `measured`: methods that follow the link (every `auto`,
and merges whose delay follows it) train on each link, in processes of their own. `composed`: the losses of all others
do not depend on the link, so these train once for each seed, unshaped, and their losses are kept; on each link the
first steps of a training are timed one by one and later steps in blocks, in turns, beside the trainings of each seed,
and the seconds to a step are the first steps and the median of the blocks for the rest. `alone` sends nothing: the
steps of DDP to its own target without communication are the bound.

--tune trains each method with the first seed at these multiples of its learning rate, methods that follow the link on
the first of the links, and takes the multiple of the lowest final loss. Rows name the rate.

With several numbers of steps, rows of `any_length` let every method choose the number with which it reaches the target
of the first number soonest: local steps are cheaper, and more of them reach the loss of fewer averaged ones.

"100d20" is a link of 100 Mbit/s with a delay of 20 ms each way.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common.rig import LOOPBACK, Options, finish, network, parse, run, say
from benchmarks.pareto import measuring, plots
from benchmarks.pareto.entrants import (
    ALONE,
    DDP,
    METHODS,
    TASKS,
    Case,
    Entry,
    methods,
    recipe_of,
    trainings,
    with_references,
)
from benchmarks.pareto.figures import CURVE, Contest, any_length_rows, rows_of
from benchmarks.results import Row, Store

NETS = ("5", "20", "100", "1000", "100d20", LOOPBACK)
RANKS = (4,)
SEEDS = ("1", "2", "3", "4", "5")
STEPS, QUICK_STEPS = ("300", "450", "600", "2000"), 30
#: Multiples of the learning rates.
FACTORS = ("0.25", "0.5", "1", "2", "4")
QUICK_METHODS = (DDP, "powersgd_4", "both_auto")


@dataclass(frozen=True)
class Field:
    """Methods and seeds of a training. `factors`: multiples of the learning rates by method."""

    names: Sequence[str]
    seeds: Sequence[int]
    factors: Mapping[str, float]

    def entries(self, names: Sequence[str], seeds: Sequence[int]) -> list[Entry]:
        """Returns the methods of these names, seed by seed."""
        return [Entry(name, seed, self.factors[name]) for seed in seeds for name in names]


def tuned(options: Options, store: Store, case: Case, names: Sequence[str], seeds: Sequence[int]) -> Field:
    """Chooses the learning rate of each method, after the trainings that the choice needs; `case`: the link for it."""
    factors = [float(factor) for factor in options.more["tune"]]
    if len(factors) == 1:
        return Field(names, seeds, dict.fromkeys(names, factors[0]))
    known = methods(case.training)
    tries = {name: [Entry(name, seeds[0], factor) for factor in factors] for name in names if name != ALONE}
    fixed = [entry for name, of_name in tries.items() if not known[name].live for entry in of_name]
    measuring.measure_losses(store, case.training, case.size, fixed)
    live = [entry for name, of_name in tries.items() if known[name].live for entry in of_name]
    if any(store.samples(measuring.live_key(case, entry)) is None for entry in live):
        with network(case.net, case.size, strict=not options.quick) as net:
            measuring.measure_live(store, case, net, live)
    best = {
        name: min(of_name, key=lambda entry: measuring.final_loss(store, case, entry)).factor
        for name, of_name in tries.items()
    }
    say(f"{case.training.key}: multiples of the learning rates: {best}")
    return Field(names, seeds, {**best, ALONE: best[DDP]})


def measure(options: Options, store: Store, case: Case, field: Field) -> None:
    """Measures one training on one link: for each seed the paces of steps, then the trainings that follow the link."""
    known = methods(case.training)
    fixed = [name for name in field.names if not known[name].live]
    live = [name for name in field.names if known[name].live]
    missing = [seed for seed in field.seeds if store.samples(measuring.pace_key(case, seed)) is None]
    entries = field.entries(live, field.seeds)
    if not missing and all(store.samples(measuring.live_key(case, entry)) is not None for entry in entries):
        return
    with network(case.net, case.size, strict=not options.quick) as net:
        for seed in field.seeds:
            if seed in missing:
                paces = measuring.measure_paces(options, case, net, fixed, seed)
                store.keep(measuring.pace_key(case, seed), paces)
            measuring.measure_live(store, case, net, field.entries(live, [seed]))


def contest_of(store: Store, case: Case, field: Field) -> Contest:
    """Reads the results of one training on one link."""
    runs = {
        name: [measuring.read_run(store, case, entry) for entry in field.entries([name], field.seeds)]
        for name in field.names
    }
    rates = {name: recipe_of(case.training, Entry(name, 1, field.factors[name]))["lr"] for name in field.names}
    return Contest(case, runs, rates)


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    more = {"tasks": TASKS, "methods": METHODS, "steps": STEPS, "seeds": SEEDS}
    more["tune"] = FACTORS
    defaults = {"steps": STEPS[0], "tune": "1"}
    options, store = parse("frontier", __doc__ or "", NETS, RANKS, ("sirtaki",), defaults=defaults, **more)
    quick, chosen, links = options.quick, options.more, _links(options)
    names = with_references(QUICK_METHODS if quick and chosen["methods"] == METHODS else chosen["methods"])
    seeds = [int(seed) for seed in chosen["seeds"]][: 1 if quick else None]
    lengths = [QUICK_STEPS] if quick else [int(steps) for steps in chosen["steps"]]
    rows: list[Row] = []
    contests: dict[tuple[str, int, str], list[Contest]] = {}
    for training in trainings(chosen["tasks"], lengths)[: 1 if quick else None]:
        for size in options.ranks if links else ():
            field = tuned(options, store, Case(links[0], size, training), names, seeds)
            fixed = [name for name in names if not methods(training)[name].live and name != ALONE]
            measuring.measure_losses(store, training, size, field.entries(fixed, seeds))
            for net in links:
                case = Case(net, size, training)
                measure(options, store, case, field)
                contest = contest_of(store, case, field)
                rows += rows_of(contest)
                contests.setdefault((f"{training.task}_{training.optimizer}", size, net), []).append(contest)
    rows += [row for of_case in contests.values() if len(of_case) > 1 for row in any_length_rows(of_case)]
    return finish(store, rows, plots.frontier, unprinted=(CURVE,))


def _links(options: Options) -> tuple[str, ...]:
    """Returns the links; for a quick run with the default choice one of 100 Mbit/s, or the first that can be made."""
    if not options.quick:
        return options.nets
    return ("100",) if "100" in options.nets else options.nets[:1]


if __name__ == "__main__":
    sys.exit(run(main))
