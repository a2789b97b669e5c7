"""`importance` on a link that changes, against fixed rates: time to the same loss, and how soon it adapts.

    python -m benchmarks.importance [--quick] [--nets 100] [--methods importance,10%] [--seeds 1,2,3,4,5] [--resume]

The link has 100 Mbit/s, for a while 20, and 100 again. A fixed rate's loss after each step does not depend on the link,
so each rate is trained once for every seed, unshaped, and the time of its steps is measured at both speeds;
`importance` trains on the link itself. Steps of fixed rates are measured again after the trainings of each seed on the
link, and compared with those trainings alone, because the load of the machine changes from minute to minute. The target
is the final loss of dense training plus 0.02; the result is the time to the target of every rate that reaches it. The
oracle uses the fastest of these rates in each phase.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.contest import ratio_row
from benchmarks.common.group import Group
from benchmarks.common.rig import Options, finish, network, parse, run, say
from benchmarks.netns import Net
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import estimate, mean_estimate, median
from benchmarks.training import compression_plots
from benchmarks.training.kept_losses import training_key
from benchmarks.training.trainings import (
    LOSS_EXCESS,
    TRAINING_SECONDS,
    control_rows,
    ended,
    mean_of_ranks,
    steps_to,
    time_alone,
    time_steps,
    train,
)

#: Mbit/s in the first and last phase, and in the phase between.
NETS, SLOW = ("100",), "20"
RANKS = (4,)
SEEDS = ("1", "2", "3", "4", "5")
TASK, BATCH, LR, MOMENTUM = "transformer", 32, 0.05, 0.9
STEPS, QUICK_STEPS = 400, 60
#: Seconds of the first phase and of the slow one; the rest is at full speed. Each is a third of the duration of all
#: steps at full speed, so that the target is not reached before the link has recovered.
PHASE_SECONDS, QUICK_PHASE_SECONDS = 13.0, 3.0
WINDOW, QUICK_WINDOW = 50, 10
WARM_STEPS, BLOCK_STEPS, BLOCKS, ALONE_BLOCKS = 10, 10, 3, 12
ORACLE, ADAPT_STEPS, TIMES_FASTER = 1.10, 20.0, 1.0
#: A plan has followed the link when its bytes are within this factor of those of the later half of the phase: trials
#: use 1.4 times the rate.
NEAR = 1.5
#: Key in the partial file of steps that send nothing.
ALONE = "steps/alone"


@dataclass(frozen=True)
class Method:
    """Reduction of the gradients. `live`: trains on the link itself, since the method follows the link."""

    text: str
    kind: str = "fixed"  # "dense", "fixed", "method" or "control"
    live: bool = False
    zero: bool = False


def _fixed(rate: str) -> Method:
    return Method(f"group_topk:rate={rate},wire=gather")


#: Without momentum correction, which costs here more than it gains: 0.15, 0.10 and 0.03 nats at 25, 10 and 3 %.
_IMPORTANCE = "importance:wire=gather"
DENSE, OURS = "dense", "importance"
METHODS = {
    DENSE: Method("none", "dense"),
    "25%": _fixed("0.25"),
    "10%": _fixed("0.1"),
    "5%": _fixed("0.05"),
    "3%": _fixed("0.03"),
    "zero": Method("none", "control", zero=True),
    OURS: Method(_IMPORTANCE, "method", live=True),
    "importance_no_ef": Method(f"{_IMPORTANCE},ef=off", "control", live=True),
}


def recipe_of(name: str, seed: int, steps: int) -> dict[str, Any]:
    """Recipe of the training, as benchmarks/training/learning.py reads it."""
    method = METHODS[name]
    return {
        "net": TASK,
        "batch": BATCH,
        "seed": seed,
        "lr": LR,
        "momentum": MOMENTUM,
        "steps": steps,
        "how": {"compression": method.text},
        "zero": method.zero,
        "watch": "sent" if method.live else None,
    }


@dataclass(frozen=True)
class Size:
    """Number of steps and lengths of the phases."""

    steps: int
    phase: float
    window: int


def size_of(options: Options) -> Size:
    """Returns the size of a full run or, with --quick, of a short one."""
    if options.quick:
        return Size(QUICK_STEPS, QUICK_PHASE_SECONDS, QUICK_WINDOW)
    return Size(STEPS, PHASE_SECONDS, WINDOW)


# ---- measuring -----------------------------------------------------------------------------


def train_live(group: Group, net: Net, name: str, seed: int, size: Size) -> dict[str, Any]:
    """Trains on the link; returns losses, end times in seconds and bytes of all steps, and the changes of the link."""
    group.call("learn_prepare", system="sirtaki", name=name, recipe=recipe_of(name, seed, size.steps))
    changes: list[float] = []

    def change(rate: str) -> None:
        net.set_rate(float(rate))
        changes.append(time.monotonic())

    timers = [
        threading.Timer(size.phase, change, [SLOW]),
        threading.Timer(2 * size.phase, change, [NETS[0]]),
    ]
    begin = time.monotonic()
    try:
        for timer in timers:
            timer.start()
        group.call("learn_run", timeout=TRAINING_SECONDS, name=name, steps=size.steps)
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
        net.set_rate(float(NETS[0]))
    watched = group.call("learn_watched", name=name)
    group.call("learn_drop", names=[name])
    return {
        "losses": mean_of_ranks([one["losses"] for one in watched]),
        "ends": [max(ends) - begin for ends in zip(*(one["ends"] for one in watched), strict=True)],
        "sent": watched[0]["sent"],
        "changes": [at - begin for at in changes],
    }


def measure_fixed(options: Options, store: Store, ranks: int, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Trains the fixed rates that the store does not hold yet."""
    fixed = [name for name in names if not METHODS[name].live]
    steps = size_of(options).steps
    missing = [(s, n) for s in seeds for n in fixed if store.trainings.get(loss_key(n, ranks, steps, s)) is None]
    if not missing:
        return
    with Group(ranks, ["sirtaki"]) as group:
        for seed, name in missing:
            losses = train(group, "sirtaki", name, recipe_of(name, seed, steps), steps)
            store.trainings.keep(loss_key(name, ranks, steps, seed), losses)
            say(f"{name}, seed {seed}: loss {ended(losses, size_of(options).window):.4f}")


def measure_live(options: Options, store: Store, ranks: int, names: Sequence[str], seed: int) -> None:
    """Trains on the link, each method in processes of its own, so that the link is unknown at first."""
    missing = [n for n in names if METHODS[n].live and store.samples(key_of(n, seed)) is None]
    if not missing:
        return
    with network(NETS[0], ranks, strict=not options.quick) as net:
        assert net is not None
        for name in missing:
            with Group(ranks, ["sirtaki"], net=net) as group:
                found = train_live(group, net, name, seed, size_of(options))
            store.keep(key_of(name, seed), found)
            loss = ended(found["losses"], size_of(options).window)
            say(f"{name}, seed {seed}: loss {loss:.4f} after {found['ends'][-1]:.0f} s")


def measure_steps(options: Options, store: Store, ranks: int, names: Sequence[str], seed: int) -> None:
    """Measures the seconds of a step of every fixed rate at both speeds of the link, block by block in turns."""
    missing = [rate for rate in (NETS[0], SLOW) if store.samples(steps_key(rate, seed)) is None]
    fixed = [name for name in names if not METHODS[name].live and METHODS[name].kind != "control"]
    trainings = {name: ("sirtaki", recipe_of(name, 1, STEPS)) for name in fixed}
    warm, blocks, steps = (3, 2, 3) if options.quick else (WARM_STEPS, BLOCKS, BLOCK_STEPS)
    for rate in missing:
        with network(rate, ranks, strict=not options.quick) as net, Group(ranks, ["sirtaki"], net=net) as group:
            store.keep(steps_key(rate, seed), time_steps(group, trainings, warm=warm, blocks=blocks, steps=steps))


def measure_alone(options: Options, store: Store, ranks: int) -> None:
    """Measures the seconds of a step that sends nothing: no rate is faster."""
    if store.samples(ALONE) is None:
        blocks, steps = (2, 3) if options.quick else (ALONE_BLOCKS, BLOCK_STEPS)
        store.keep(ALONE, time_alone(ranks, recipe_of(DENSE, 1, STEPS), blocks=blocks, steps=steps))


def key_of(name: str, seed: int) -> str:
    """Key in the partial file of a training on the link."""
    return f"live/{name}/{seed}"


def steps_key(rate: str, seed: int) -> str:
    """Key of the steps of fixed rates that belong to the trainings of a seed on the link."""
    return f"steps/{rate}/{seed}"


def loss_key(name: str, ranks: int, steps: int, seed: int) -> str:
    """Key of a training among those that are kept."""
    return training_key(name, ranks, recipe_of(name, seed, steps))


# ---- figures -------------------------------------------------------------------------------


def fixed_seconds(steps: int, fast: float, slow: float, phase: float) -> float:
    """Seconds of `steps` steps of `fast` or `slow` seconds, on a link that is slow from `phase` to twice `phase`."""
    done, now = 0.0, 0.0
    for end, step in ((phase, fast), (2 * phase, slow)):
        here = min(steps - done, (end - now) / step)
        done += here
        now += here * step
        if done >= steps:
            return now
    return now + (steps - done) * fast


def oracle_ratio(found: dict[str, Any], fast: float, slow: float) -> float:
    """Seconds of a live training over the seconds of as many steps in each phase at the pace of the oracle."""
    total = 0.0
    begin = 0.0
    for end in found["ends"]:
        slowed = found["changes"][0] <= begin < found["changes"][1]
        total += slow if slowed else fast
        begin = end
    return float(found["ends"][-1] / total)


def steps_to_adapt(found: dict[str, Any]) -> list[float]:
    """Steps after each change of the link until as many bytes are sent as in the later half of that phase.

    The last phase has the link of the first, so the bytes of the later half of the first phase count: a plan that does
    not follow a link that got faster has not adapted, though it no longer changes.
    """
    ends, sent, changes = found["ends"], found["sent"], found["changes"]
    starts = [0, *(next((i for i, end in enumerate(ends) if end > at), len(ends)) for at in changes), len(ends)]
    phases = list(itertools.pairwise(starts))
    out = []
    for number, (first, last) in enumerate(phases[1:], 1):
        if last - first < 4:
            continue
        begin, end = phases[0 if number == 2 else number]
        goal = median(sent[(begin + end) // 2 : end])
        near = (i for i in range(first, last) if goal / NEAR <= sent[i] <= goal * NEAR)
        out.append(float(next(near, last) - first))
    return out


@dataclass(frozen=True)
class Reached:
    """Seconds and steps of a method to the target, seed by seed."""

    seconds: list[float]
    steps: list[int]


def rows_of(options: Options, store: Store, ranks: int, names: Sequence[str], seeds: Sequence[int]) -> list[Row]:
    """Rows of the losses, times and ratios of all methods. No step is shorter than one that sends nothing."""
    size = size_of(options)
    alone = estimate(store.samples(ALONE)).value
    losses = {
        name: [
            store.samples(key_of(name, s))["losses"]
            if METHODS[name].live
            else store.trainings.get(loss_key(name, ranks, size.steps, s)) or []
            for s in seeds
        ]
        for name in names
    }
    ends = {name: [ended(one, size.window) for one in of_seeds] for name, of_seeds in losses.items()}
    targets = [end + LOSS_EXCESS for end in ends[DENSE]]
    seconds = {rate: [store.samples(steps_key(rate, s)) for s in seeds] for rate in (NETS[0], SLOW)}
    rows: list[Row] = []
    reached: dict[str, Reached] = {}
    for name in names:
        method = METHODS[name]
        params = {"method": name, "kind": method.kind, "ranks": ranks}
        rows.append(make_row("loss", params, mean_estimate(ends[name]), "nats", "lower"))
        excess = mean_estimate([own - dense for own, dense in zip(ends[name], ends[DENSE], strict=True)])
        wanted = LOSS_EXCESS if method.kind == "method" else None
        rows.append(make_row("loss_excess", params, excess, "nats", "lower", target=wanted))
        if method.kind == "control":
            rows += control_rows(params, ends[name], OURS, ends[OURS])
        for rate, samples in seconds.items():
            if name in samples[0]:
                at = {**params, "net": "netns", "rate_mbit": float(rate)}
                all_seeds = estimate([one for of_seed in samples for one in of_seed[name]])
                rows.append(make_row("step_seconds", at, all_seeds, "s", "lower", bound=alone))
        found = [steps_to(one, target, size.window) for one, target in zip(losses[name], targets, strict=True)]
        counts = [count for count in found if count is not None]
        share = estimate([len(counts) / len(found)])
        rows.append(make_row("seeds_that_reach_the_target", params, share, "share", "higher"))
        # Only rates whose mean final loss is near enough compete, and only if all of their seeds reach the target.
        if method.kind == "control" or len(counts) < len(found) or excess.value > LOSS_EXCESS:
            continue
        if method.live:
            live = [store.samples(key_of(name, s)) for s in seeds]
            times = [one["ends"][count - 1] for one, count in zip(live, counts, strict=True)]
        else:
            paces = zip(*(pace_of(seconds[rate], name) for rate in (NETS[0], SLOW)), strict=True)
            times = [fixed_seconds(n, fast, slow, size.phase) for n, (fast, slow) in zip(counts, paces, strict=True)]
        reached[name] = Reached(times, counts)
        least = median(counts) * alone
        rows.append(make_row("seconds_to_target", params, estimate(times), "s", "lower", bound=least))
    return rows + rows_against(store, ranks, reached, seeds, seconds)


def pace_of(of_seeds: Sequence[dict[str, list[float]]], name: str) -> list[float]:
    """Seconds of a step of a rate, seed by seed."""
    return [median(samples[name]) for samples in of_seeds]


def fastest(of_seeds: Sequence[dict[str, list[float]]], names: Sequence[str]) -> str:
    """Returns the fastest of these rates, all seeds taken together."""
    return min(names, key=lambda name: median([one for of_seed in of_seeds for one in of_seed[name]]))


def rows_against(
    store: Store,
    ranks: int,
    reached: dict[str, Reached],
    seeds: Sequence[int],
    seconds: dict[str, list[dict[str, list[float]]]],
) -> list[Row]:
    """Rows of `importance` against the fixed rates that end as well, and against the oracle."""
    alone = estimate(store.samples(ALONE)).value
    params = {"method": OURS, "kind": "method", "ranks": ranks}
    live = [store.samples(key_of(OURS, s)) for s in seeds]
    fixed = [name for name in reached if name in seconds[NETS[0]][0]]
    rows = []
    for name in fixed if OURS in reached else ():
        against = {**params, "against": name}
        theirs, ours = reached[name].seconds, reached[OURS]
        # The bound is the same number of steps that send nothing.
        bound = median(one / (count * alone) for one, count in zip(theirs, ours.steps, strict=True))
        rows.append(ratio_row("times_faster", against, theirs, ours.seconds, name, bound=bound, target=TIMES_FASTER))
    paces = (pace_of(seconds[rate], fastest(seconds[rate], fixed)) for rate in (NETS[0], SLOW))
    over = estimate([oracle_ratio(one, fast, slow) for one, fast, slow in zip(live, *paces, strict=True)])
    rows.append(make_row("over_oracle", params, over, "ratio", "lower", bound=1.0, target=ORACLE))
    by_change = zip(*(steps_to_adapt(one) for one in live), strict=False)
    for change, samples in zip((f"{NETS[0]} to {SLOW}", f"{SLOW} to {NETS[0]}"), by_change, strict=False):
        of_change = {**params, "link": change}
        found = estimate(samples)
        # The plan cannot follow a changed link before one step has been measured on it.
        rows.append(make_row("steps_to_adapt", of_change, found, "steps", "lower", bound=1.0, target=ADAPT_STEPS))
    return rows


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    options, store = parse("importance", __doc__ or "", NETS, RANKS, ("sirtaki",), methods=tuple(METHODS), seeds=SEEDS)
    names = list(dict.fromkeys([DENSE, *options.more["methods"], OURS]))
    seeds = [int(seed) for seed in options.more["seeds"]][: 1 if options.quick else None]
    rows: list[Row] = []
    for ranks in options.ranks if options.nets else ():
        for seed in seeds:
            measure_live(options, store, ranks, names, seed)
            measure_steps(options, store, ranks, names, seed)
        measure_alone(options, store, ranks)
        measure_fixed(options, store, ranks, names, seeds)
        rows += rows_of(options, store, ranks, names, seeds)
    return finish(store, rows, compression_plots.importance)


if __name__ == "__main__":
    sys.exit(run(main))
