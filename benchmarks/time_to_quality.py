"""Time to the same training loss, by network, link and system: torch DDP, its fp16 hook, PowerSGD, and Sirtaki.

    python -m benchmarks.time_to_quality [--quick] [--nets 20,100] [--tasks cnn,convnet] [--systems ddp,...] [--resume]

The loss of a system after each step does not depend on the link (settings of Sirtaki name their reduction algorithm,
and densities stay), so each system is trained once for every seed, unshaped; the time of a step is measured on the
link. The target is the final loss of DDP plus 0.02 nats: a system that converges as well reaches that loss before its
own end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.contest import TaskCase, ratio_row
from benchmarks.common.group import Group
from benchmarks.common.rig import Options, finish, network, parse, run, say
from benchmarks.methods import METHODS
from benchmarks.netns import Net
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import estimate, median
from benchmarks.training import compression_plots
from benchmarks.training.kept_losses import training_key
from benchmarks.training.trainings import LOSS_EXCESS, ended, smooth, steps_to, time_alone, time_steps, train

NETS = ("100", "20")
RANKS = (4,)
SEEDS = (1, 2, 3, 4, 5)
#: Steps by net.
TASKS = {"cnn": 936, "convnet": 936, "transformer": 250}
BATCH, LR = 32, 0.05
#: Losses are means over this many steps, and over the ranks.
WINDOW = 50
WARM_STEPS, BLOCK_STEPS, BLOCKS = 20, 10, 10
DDP, FP16 = "ddp", "ddp_fp16"


@dataclass(frozen=True)
class Entrant:
    """A system of benchmarks/common/systems.py with its settings."""

    system: str
    how: dict[str, Any]


#: Published methods with the settings of `methods`, which are chosen for few bytes, and codecs with their defaults.
OURS = {
    **{name: METHODS[name].text for name in ("hylo", "algc", "group_topk")},
    "int8": "int8:wire=scatter",
    "twobit": "twobit:wire=scatter",
    "low_rank": "powersgd:rank=4",
    # The hook of torch compresses small matrices, too.
    "low_rank_2": "powersgd:rank=2,min=1KiB",
}
ENTRANTS = {
    DDP: Entrant("gloo", {}),
    FP16: Entrant("gloo_fp16", {}),
    "powersgd_1": Entrant("gloo_powersgd", {"rank": 1}),
    "powersgd_2": Entrant("gloo_powersgd", {"rank": 2}),
    "powersgd_4": Entrant("gloo_powersgd", {"rank": 4}),
    **{name: Entrant("sirtaki", {"compression": text}) for name, text in OURS.items()},
}
POWERSGD = ("powersgd_1", "powersgd_2", "powersgd_4")
#: Baseline -> target of the speed-up of the best setting of Sirtaki.
TARGETS = {DDP: 3.0, FP16: 2.0}
POWERSGD_TARGET, POWERSGD_FLOOR, POWERSGD_EXPOSED = 1.2, 0.97, 1.3


@dataclass(frozen=True)
class Trainings:
    """Seeds and number of steps of the trainings."""

    seeds: tuple[int, ...]
    steps: int | None  # None: to the end


def recipe_of(entrant: Entrant, task: str, seed: int) -> dict[str, Any]:
    """Recipe of the training, as benchmarks/training/learning.py reads it."""
    return {
        "net": task,
        "batch": BATCH,
        "seed": seed,
        "lr": LR,
        "momentum": 0.9,
        "steps": TASKS[task],
        "how": entrant.how,
    }


def systems_of(names: Sequence[str]) -> list[str]:
    """Returns each system once."""
    return list(dict.fromkeys(ENTRANTS[name].system for name in names))


# ---- measuring -----------------------------------------------------------------------------


def measure_losses(store: Store, case: TaskCase, names: Sequence[str], chosen: Trainings) -> None:
    """Runs the trainings that the store does not hold yet; each is kept when it finishes."""
    seeds, steps = chosen.seeds, chosen.steps or TASKS[case.task]
    missing = [(s, n) for s in seeds for n in names if store.trainings.get(loss_key(case, n, s)) is None]
    if not missing:
        return
    with Group(case.size, systems_of(names)) as group:
        for seed, name in missing:
            entrant = ENTRANTS[name]
            losses = train(group, entrant.system, name, recipe_of(entrant, case.task, seed), steps)
            store.trainings.keep(loss_key(case, name, seed), losses)
            say(f"{case.key}: {name}, seed {seed}: loss {ended(losses, WINDOW):.4f}")


def loss_key(case: TaskCase, name: str, seed: int) -> str:
    """Key of a training among those that are kept."""
    return training_key(name, case.size, recipe_of(ENTRANTS[name], case.task, seed))


def measure_steps(options: Options, case: TaskCase, names: Sequence[str], net: Net | None) -> dict[str, list[float]]:
    """Measures the seconds of a step of every system, block by block in turns."""
    trainings = {name: (ENTRANTS[name].system, recipe_of(ENTRANTS[name], case.task, 1)) for name in names}
    with Group(case.size, systems_of(names), net=net) as group:
        if options.quick:
            return time_steps(group, trainings, warm=3, blocks=2, steps=3)
        return time_steps(group, trainings, warm=WARM_STEPS, blocks=BLOCKS, steps=BLOCK_STEPS)


# ---- rows ----------------------------------------------------------------------------------


def rows_of(case: TaskCase, found: dict[str, list[list[float]]], seconds: dict[str, list[float]]) -> list[Row]:
    """Rows of the time to the target by system, and of Sirtaki against the others, seed by seed.

    `found`: losses by system and seed. No step is shorter than one that sends nothing.
    """
    rows: list[Row] = []
    alone = estimate(seconds["alone"]).value
    targets = [smooth(losses, WINDOW)[-1] + LOSS_EXCESS for losses in found[DDP]]
    times: dict[str, list[float]] = {}
    for name, trainings in found.items():
        step = estimate(seconds[name])
        params = {"system": name, **case.params}
        rows.append(make_row("step_seconds", params, step, "s", "lower", bound=alone))
        counts = [steps_to(losses, target, WINDOW) for losses, target in zip(trainings, targets, strict=True)]
        reached = [count for count in counts if count is not None]
        share = estimate([len(reached) / len(counts)])
        rows.append(make_row("seeds_that_reach_the_target", params, share, "share", "higher"))
        if len(reached) == len(counts):
            times[name] = [count * step.value for count in reached]
            least = median(reached) * alone
            rows.append(make_row("seconds_to_target", params, estimate(times[name]), "s", "lower", bound=least))
    ours = [name for name in OURS if name in times]
    if not ours:
        return rows
    best = min(ours, key=lambda name: estimate(times[name]).value)
    params = {"system": best, **case.params}
    for baseline, target in TARGETS.items():
        if baseline in times:
            pair = (times[baseline], times[best])
            # The bound is a training with as many steps as the baseline that sends nothing.
            most = estimate(seconds[baseline]).value / alone
            rows.append(ratio_row(f"speedup_over_{baseline}", params, *pair, baseline, bound=most, target=target))
    rivals = [name for name in POWERSGD if name in times]
    if rivals:
        rival = min(rivals, key=lambda name: estimate(times[name]).value)
        exposed = estimate(seconds[rival]).value / alone
        target = POWERSGD_TARGET if exposed >= POWERSGD_EXPOSED else POWERSGD_FLOOR
        with_floor = {**params, "step_over_compute": round(exposed, 2)}
        pair = (times[rival], times[best])
        rows.append(ratio_row("speedup_over_powersgd", with_floor, *pair, rival, bound=exposed, target=target))
    return rows


def measure_alone(options: Options, case: TaskCase) -> list[float]:
    """Measures the seconds of a step that sends nothing."""
    blocks, steps = (2, 3) if options.quick else (BLOCKS, BLOCK_STEPS)
    return time_alone(case.size, recipe_of(Entrant("alone", {}), case.task, 1), blocks=blocks, steps=steps)


def measure(options: Options, store: Store, case: TaskCase, names: Sequence[str]) -> list[Row]:
    """Measures one task on one link; returns all of its rows."""
    chosen = Trainings(SEEDS[:2], 2 * WINDOW) if options.quick else Trainings(SEEDS, None)
    measure_losses(store, case, names, chosen)
    if store.samples(case.key) is None:
        with network(case.net, case.size, strict=not options.quick) as net:
            store.keep(case.key, {**measure_steps(options, case, names, net), "alone": measure_alone(options, case)})
    found = {name: [store.trainings.get(loss_key(case, name, s)) or [] for s in chosen.seeds] for name in names}
    return rows_of(case, found, store.samples(case.key))


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    options, store = parse("time_to_quality", __doc__ or "", NETS, RANKS, tuple(ENTRANTS), tasks=tuple(TASKS))
    names = list(dict.fromkeys([DDP, *options.systems]))
    rows: list[Row] = []
    for task in options.more["tasks"][: 1 if options.quick else None]:
        for size in options.ranks:
            for net in options.nets:
                rows += measure(options, store, TaskCase(net, size, task), names)
    return finish(store, rows, compression_plots.time_to_quality)


if __name__ == "__main__":
    sys.exit(run(main))
