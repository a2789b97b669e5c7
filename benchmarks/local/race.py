"""Time to the same loss on a slow link: local updates against synchronous training, Local SGD and compression.

The losses of synchronous training and Local SGD do not depend on the link: these train unshaped, and the time of their
steps is measured on the link. Methods that follow the link train on it, in processes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.contest import ratio_row
from benchmarks.common.group import Group
from benchmarks.common.rig import Options, network, say
from benchmarks.local.cases import (
    RANKS,
    SYSTEM,
    Task,
    Watched,
    final_loss,
    local,
    points,
    recipe_of,
    step_at,
    train,
    train_afresh,
)
from benchmarks.netns import Net
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import estimate, exactly, mean_estimate, median
from benchmarks.training.trainings import LOSS_EXCESS, time_steps

NET = "100"
#: The transformer has four sequences a rank: with eight, a local step takes 0.36 of a synchronous one at this rate, so
#: no method can be three times as fast.
TASKS = {"cnn": Task("cnn", 32, 936), "transformer": Task("transformer", 4, 600)}
DENSE, LOCAL_SGD, COMPRESSED = "dense", "local_sgd", "compressed"
#: `auto` sends differences with fewer bits where that saves delay or steps; `both` compresses gradients, too.
AUTO, BOTH = "auto", "both"
OURS = (AUTO, BOTH)
#: Baseline -> target of the speed-up of `auto`.
TARGETS = {DENSE: 3.0, LOCAL_SGD: 1.3}
NEVER_WORSE, EXPOSED = 0.97, 0.10
#: Net -> allowed loss of quality against synchronous training: points of accuracy, nats on unseen text.
QUALITY = {"cnn": ("points", 0.5), "transformer": ("nats", 0.02)}
LOCAL_SGD_STEPS = 8
#: Steps of a timed block, each of which has two merges; steps before the first block; number of blocks.
BLOCK_STEPS, WARM_STEPS, BLOCKS = 16, 15, 8

#: Links on which the interval is compared, number of steps, and the end of the learning rate, so late that the rate is
#: constant: a falling rate would change the interval.
SWEEP, SWEEP_STEPS, CONSTANT = ("1000", "100", "20"), 300, 100_000
#: Links on which synchronous steps wait for longer than they compute.
SLOW = ("100", "20")


@dataclass(frozen=True)
class Entrant:
    """A method that keeps models equal. `how`: arguments of DistributedOptimizer; `live`: it follows the link."""

    how: Mapping[str, Any]
    live: bool


def entrants(task: Task) -> dict[str, Entrant]:
    """Returns the methods of a task by name."""
    auto = local("auto", task.steps)
    fixed = f"fixed:steps={LOCAL_SGD_STEPS},delay=0,warmup=0,guard=off"
    return {
        DENSE: Entrant({"compression": "none"}, False),
        LOCAL_SGD: Entrant({"compression": "none", **local(fixed, task.steps, outer="none")}, False),
        COMPRESSED: Entrant({"compression": "auto"}, True),
        AUTO: Entrant(auto, True),
        BOTH: Entrant({"compression": "auto", **auto}, True),
    }


def key_of(task: Task, name: str, seed: int) -> str:
    """Key of a training in the partial file."""
    return f"race/{task.net}/{task.batch}/{name}/{seed}"


def steps_key(task: Task) -> str:
    """Key of the step times in the partial file."""
    return f"race/{task.net}/{task.batch}/steps"


def measure_losses(store: Store, task: Task, seeds: Sequence[int], steps: int) -> None:
    """Runs the trainings whose losses do not depend on the link and that the store does not hold yet."""
    fixed = {name: one for name, one in entrants(task).items() if not one.live}
    missing = [(s, n) for s in seeds for n in fixed if store.samples(key_of(task, n, s)) is None]
    if not missing:
        return
    with Group(RANKS, [SYSTEM]) as group:
        for seed, name in missing:
            found = train(group, recipe_of(task, seed, fixed[name].how), steps)
            store.keep(key_of(task, name, seed), found)
            say(f"{task.net}: {name}, seed {seed}: {found['quality']:.4f}")


def measure_live(options: Options, store: Store, task: Task, seeds: Sequence[int], steps: int) -> None:
    """Runs the trainings on the link that the store does not hold yet."""
    live = {name: one for name, one in entrants(task).items() if one.live}
    missing = [(s, n) for s in seeds for n in live if store.samples(key_of(task, n, s)) is None]
    if not missing:
        return
    with network(NET, RANKS, strict=not options.quick) as net:
        for seed, name in missing:
            found = train_afresh(net, recipe_of(task, seed, live[name].how), steps)
            store.keep(key_of(task, name, seed), found)
            say(f"{task.net}: {name}, seed {seed}: {found['quality']:.4f} after {found['ends'][-1]:.1f} s")


def measure_steps(options: Options, store: Store, task: Task) -> None:
    """Measures the seconds of a step of the fixed methods on the link, in turns."""
    key = steps_key(task)
    if store.samples(key) is not None:
        return
    fixed = {name: (SYSTEM, _unwatched(task, one)) for name, one in entrants(task).items() if not one.live}
    with network(NET, RANKS, strict=not options.quick) as net, Group(RANKS, [SYSTEM], net=net) as group:
        blocks = 2 if options.quick else BLOCKS
        store.keep(key, time_steps(group, fixed, warm=WARM_STEPS, blocks=blocks, steps=BLOCK_STEPS))


def _unwatched(task: Task, one: Entrant) -> dict[str, Any]:
    return recipe_of(task, 1, one.how, watch=None, curve=0)


def measure_sweep(options: Options, store: Store) -> None:
    """Measures the interval on each link."""
    for rate in SWEEP:
        if store.samples(f"sweep/{rate}") is not None:
            continue
        with network(rate, RANKS, strict=not options.quick) as net:
            store.keep(f"sweep/{rate}", _sweep(net, 120 if options.quick else SWEEP_STEPS))


def _sweep(net: Net | None, steps: int) -> float:
    """Trains; returns the median interval of the later half."""
    recipe = recipe_of(Task("cnn", 32, CONSTANT), 1, local("auto:warmup=16", steps))
    found = train_afresh(net, recipe, steps)
    last = median(found["paces"][0]["interval"][steps // 2 :])
    say(f"interval {last:.0f}, {found['local']['reason']}")
    return last


# ---- rows ----------------------------------------------------------------------------------


def rows(store: Store, task: Task, seeds: Sequence[int]) -> list[Row]:
    """Rows of accuracy, time to the target, exposed communication, and ratios with targets, seed by seed."""
    names = entrants(task)
    found = {n: [Watched.of(store.samples(key_of(task, n, seed))) for seed in seeds] for n in names}
    seconds = store.samples(steps_key(task))
    targets = [final_loss(one) + LOSS_EXCESS for one in found[DENSE]]
    dense = [one.quality for one in found[DENSE]]
    params = {"part": "race", "task": task.net, "batch": task.batch, "net": "netns", "rate_mbit": float(NET)}
    params["ranks"] = RANKS
    out: list[Row] = []
    times: dict[str, list[float]] = {}
    for name, trainings in found.items():
        at = {**params, "method": name}
        if name in seconds:
            out.append(make_row("step_seconds", at, estimate(seconds[name]), "s", "lower"))
        unit, wanted = QUALITY[task.net]
        cost = mean_estimate(_cost(task, [one.quality for one in trainings], dense))
        asked = wanted if name in OURS else None
        out.append(make_row("quality_cost", at, cost, unit, "lower", target=asked, by_value=True))
        steps = [step_at(one, goal) for one, goal in zip(trainings, targets, strict=True)]
        reached = [step for step in steps if step is not None]
        share = exactly(len(reached) / len(steps))
        asked = 1.0 if name in OURS else None
        out.append(make_row("seeds_that_reach_the_target", at, share, "share", "higher", target=asked))
        if len(reached) == len(steps):
            if name in seconds:
                times[name] = [step * estimate(seconds[name]).value for step in reached]
            else:
                times[name] = [one.ends[round(step) - 1] for one, step in zip(trainings, reached, strict=True)]
            out.append(make_row("seconds_to_target", at, estimate(times[name]), "s", "lower"))
        if name in OURS:
            out += exposed_rows(at, trainings)
    return out + against_rows(params, times)


def _cost(task: Task, mine: Sequence[float], dense: Sequence[float]) -> list[float]:
    """Loss of quality: points of accuracy or, for text, nats of the loss on unseen text."""
    return points(mine, dense) if task.net == "cnn" else [b - a for a, b in zip(mine, dense, strict=True)]


def exposed_rows(params: dict[str, Any], trainings: Sequence[Watched]) -> list[Row]:
    """Rows of the share of time in which ranks waited or copied: for the link after the synchronous warm-up, and total.

    The wait for the link is that of the rank that waited least in a step: this rank came last, and the others also
    waited for it. If a training made no local step, the whole training counts.
    """
    link, whole = [], []
    for one in trainings:
        steps = list(zip(*(_differences(pace["exposed"]) for pace in one.paces), strict=True))
        first = next((i for i, interval in enumerate(one.paces[0]["interval"]) if interval > 1), None)
        begin, began = (0, 0.0) if first is None else (first + 1, one.ends[first])
        link.append(sum(min(of_step) for of_step in steps[begin:]) / (one.ends[-1] - began))
        whole.append(sum(sum(of_step) / len(of_step) for of_step in steps) / one.ends[-1])
    return [
        make_row("exposed_after_warm_up", params, estimate(link), "share", "lower", target=EXPOSED, by_value=True),
        make_row("exposed_with_skew", params, estimate(whole), "share", "lower"),
    ]


def _differences(values: Sequence[float]) -> list[float]:
    return [value - before for value, before in zip(values, [0.0, *values], strict=False)]


def against_rows(params: dict[str, Any], times: dict[str, list[float]]) -> list[Row]:
    """Rows of the speed-up to the target; 0 if some seed did not reach the target."""
    pairs = [(AUTO, against, target) for against, target in TARGETS.items()]
    pairs += [(BOTH, against, NEVER_WORSE) for against in (AUTO, COMPRESSED)]
    out: list[Row] = []
    for name, against, target in pairs:
        at = {**params, "method": name, "against": against}
        if name not in times:
            out.append(make_row("times_faster", at, exactly(0.0), "ratio", "higher", target=target))
        elif against in times:
            row = ratio_row("times_faster", at, times[against], times[name], against, target=target, by_value=True)
            out.append(row)
    return out


def sweep_rows(store: Store) -> list[Row]:
    """Rows of the interval by link: at least that of the next faster link, and over one step on slow links."""
    out: list[Row] = []
    before: float | None = None
    for rate in SWEEP:
        params = {"part": "sweep", "task": "cnn", "net": "netns", "rate_mbit": float(rate), "ranks": RANKS}
        figure = exactly(store.samples(f"sweep/{rate}"))
        target = before if rate not in SLOW else max(before or 0.0, 2.0)
        out.append(make_row("interval", params, figure, "steps", "higher", target=target, by_value=True))
        before = figure.value
    return out
