"""Measurements of `frontier`: losses without a link, paces of steps and whole trainings on it.

Owned by: the main process of the benchmark, one thread. Does not: choose the cases, or make figures of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from statistics import fmean
from typing import Any

from benchmarks.common.group import Group
from benchmarks.common.rig import Options, say, turn_order
from benchmarks.local.cases import train, train_afresh
from benchmarks.netns import INTERFACE, Net
from benchmarks.pareto.entrants import ALONE, DDP, Case, Entry, Training, methods, recipe_of, spacing
from benchmarks.pareto.runs import Pace, Run, composed, measured
from benchmarks.results import Store
from benchmarks.training.kept_losses import training_key
from benchmarks.training.trainings import TRAINING_SECONDS

#: First steps of a training, which are timed one by one; no more of them than fit into the seconds, but FEWEST_STEPS.
FIRST_STEPS, FIRST_SECONDS, FEWEST_STEPS = 24, 8.0, 4
#: Later blocks, in turns: number of blocks and steps of a block; no more steps than fit into the seconds.
BLOCKS, BLOCK_STEPS, BLOCK_SECONDS = 4, 10, 3.0
QUICK_FIRST_STEPS, QUICK_BLOCKS = 8, 2


# ---- losses that do not depend on the link --------------------------------------------------


def measure_losses(store: Store, training: Training, ranks: int, entries: Sequence[Entry]) -> None:
    """Trains without a link where the store holds no losses; each result is kept when it is there."""
    missing = [entry for entry in entries if kept_losses(store, training, ranks, entry) is None]
    if not missing:
        return
    known = methods(training)
    with Group(ranks, list(dict.fromkeys(known[entry.name].system for entry in missing))) as group:
        for entry in missing:
            recipe = recipe_of(training, entry, watch="local", curve=spacing(training))
            found = train(group, recipe, training.steps, known[entry.name].system)
            key = training_key(entry.name, ranks, recipe)
            store.trainings.keep(f"{key}/quality", [found["quality"]])
            store.trainings.keep(key, [loss for _, loss in found["curve"]])
            loss = found["curve"][-1][1]
            say(f"{training.key}: {entry.name}, seed {entry.seed}, lr {recipe['lr']:g}: loss {loss:.4f}")


def kept_losses(store: Store, training: Training, ranks: int, entry: Entry) -> Any | None:
    """Losses at the points of the curve, and the quality; None if the training has to run."""
    key = training_key(entry.name, ranks, recipe_of(training, entry))
    losses, quality = store.trainings.get(key), store.trainings.get(f"{key}/quality")
    return None if losses is None or quality is None else (losses, quality[0])


def curve_of(losses: Sequence[float], training: Training) -> list[list[float]]:
    """Returns the points of the curve of a training; the last one is the final model."""
    at = [*range(spacing(training), training.steps + 1, spacing(training)), training.steps]
    return [[float(step), loss] for step, loss in zip(at, losses, strict=True)]


# ---- steps on the link -----------------------------------------------------------------------


def measure_paces(options: Options, case: Case, net: Net | None, names: Sequence[str], seed: int) -> dict[str, Any]:
    """Measures the first steps of a training with each method, then later ones block by block in turns."""
    known = methods(case.training)
    firsts: dict[str, int] = {}
    blocks: dict[str, int] = {}
    with Group(case.size, list(dict.fromkeys(known[name].system for name in names)), net=net) as group:
        for name in names:
            interface = INTERFACE if net is not None and name != ALONE else ""
            recipe = recipe_of(case.training, Entry(name, seed), interface=interface)
            group.call("learn_prepare", system=known[name].system, name=name, recipe=recipe)
            firsts[name], seconds = _first_steps(group, name, QUICK_FIRST_STEPS if options.quick else FIRST_STEPS)
            blocks[name] = 1 + block_steps(seconds, known[name].period)
        for turn in range(QUICK_BLOCKS if options.quick else BLOCKS):
            for name in turn_order(list(names), turn):
                group.call("learn_run", timeout=TRAINING_SECONDS, name=name, steps=blocks[name])
        return {name: asdict(pace_of(group.call("learn_watched", name=name), firsts[name])) for name in names}


def _first_steps(group: Group, name: str, most: int) -> tuple[int, float]:
    """Makes the first steps of a training; returns their number and the seconds of one."""
    done, total = 0, 0.0
    while done < most and (done < FEWEST_STEPS or total < FIRST_SECONDS):
        # A few at first: the others may take long.
        part = min(FEWEST_STEPS, most - done)
        total += part * max(group.call("learn_run", timeout=TRAINING_SECONDS, name=name, steps=part))
        done += part
    return done, total / done


def block_steps(seconds: float, period: int) -> int:
    """Returns the timed steps of a block: as many as fit, in whole periods, at least one of these."""
    fit = min(BLOCK_STEPS, int(BLOCK_SECONDS / max(seconds, 1e-9)))
    return period * max(1, fit // period)


def pace_of(watched: Sequence[dict[str, Any]], first: int) -> Pace:
    """Makes the pace from the records of all ranks; `first`: number of first steps.

    The first step of a later block is not counted: it brings the ranks together after the turns of other methods.
    """
    ends = [max(of_step) for of_step in zip(*(one["ends"] for one in watched), strict=True)]
    sent = [float(one) for one in max((one["sent"] for one in watched), key=sum)]
    begins = {at: min(one["starts"][i][1] for one in watched) for i, (at, _) in enumerate(watched[0]["starts"])}
    seconds = [end - begins.get(i, ends[i - 1]) for i, end in enumerate(ends)]
    cuts = [at for at in begins if at >= first] + [len(ends)]
    later = [slice(begin + 1, end) for begin, end in pairwise(cuts)]
    return Pace(
        first=seconds[:first],
        first_sent=sent[:first],
        blocks=[fmean(seconds[block]) for block in later],
        block_sent=[fmean(sent[block]) for block in later],
    )


# ---- trainings on the link -------------------------------------------------------------------


def measure_live(store: Store, case: Case, net: Net | None, entries: Sequence[Entry]) -> None:
    """Trains on the link, each method in processes of its own, so that the link is unknown at first.

    Leaves out what the store holds.
    """
    for entry in entries:
        if store.samples(live_key(case, entry)) is not None:
            continue
        interface = INTERFACE if net is not None else ""
        more = {"watch": "local", "interface": interface, "curve": spacing(case.training)}
        found = train_afresh(net, recipe_of(case.training, entry, **more), case.training.steps, case.size)
        found.pop("local")
        found["paces"] = [{"exposed": pace["exposed"]} for pace in found["paces"]]
        store.keep(live_key(case, entry), found)
        loss, end = found["curve"][-1][1], found["ends"][-1]
        say(f"{case.key}: {entry.name}, seed {entry.seed}, factor {entry.factor:g}: loss {loss:.4f} after {end:.1f} s")


def live_key(case: Case, entry: Entry) -> str:
    """Key of a training on the link in the partial file."""
    return f"live/{case.key}/{entry.name}/{entry.seed}/{entry.factor:g}"


def pace_key(case: Case, seed: int) -> str:
    """Key of the paces that belong to the trainings of a seed on the link."""
    return f"pace/{case.key}/{seed}"


# ---- reading ---------------------------------------------------------------------------------


def read_run(store: Store, case: Case, entry: Entry) -> Run:
    """Returns the run of a method. The bound has the losses of DDP and steps that send nothing."""
    if methods(case.training)[entry.name].live:
        return measured(store.samples(live_key(case, entry)))
    losses = Entry(DDP, entry.seed, entry.factor) if entry.name == ALONE else entry
    kept = kept_losses(store, case.training, case.size, losses)
    assert kept is not None
    pace = Pace(**store.samples(pace_key(case, entry.seed))[entry.name])
    return composed(curve_of(kept[0], case.training), kept[1], pace)


def final_loss(store: Store, case: Case, entry: Entry) -> float:
    """Loss of the final model of a method, as read_run() has it, without the times."""
    if methods(case.training)[entry.name].live:
        return float(store.samples(live_key(case, entry))["curve"][-1][1])
    kept = kept_losses(store, case.training, case.size, entry)
    assert kept is not None
    return float(kept[0][-1])
