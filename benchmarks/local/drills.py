"""Drills of the guards: one rank has a fault after the warm-up, and the training has to end as without its data.

Intervals are fixed, since `auto` would average gradients on loopback. Delays may grow after a rank has been late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.common.group import Group
from benchmarks.common.rig import say
from benchmarks.local.cases import RANKS, SYSTEM, Task, Watched, local, points, recipe_of, train
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import exactly, mean_estimate

TASK = Task("cnn", 32, 936)
INTERVAL = 8
#: Step of the fault; guards have enough rounds as a reference by then.
FAULT_STEP, QUICK_FAULT_STEP = 400, 240
STALL_SECONDS, QUICK_STALL_SECONDS = 30.0, 2.0
#: Rank with the fault: the last one, so that the other ranks have the same shards without it.
SICK = RANKS - 1
CLEAN, WITHOUT = "clean", "without_its_shard"
FAULTS = ("nan", "lr", "labels", "stall")
#: Faults that must exclude the rank from merges.
EXCLUDED = ("nan", "lr", "labels")
ACCURACY_COST, ROUNDS_TO_EXCLUDE = 1.0, 3.0


def key_of(name: str, seed: int) -> str:
    """Key of a training in the partial file."""
    return f"drills/{name}/{seed}"


def measure(store: Store, seeds: Sequence[int], quick: bool) -> None:
    """Runs the trainings that the store does not hold yet."""
    steps = QUICK_FAULT_STEP + 40 if quick else TASK.steps
    at = QUICK_FAULT_STEP if quick else FAULT_STEP
    stall = QUICK_STALL_SECONDS if quick else STALL_SECONDS
    faults: dict[str, dict[str, Any]] = {CLEAN: {}}
    faults |= {kind: {"fault": {"kind": kind, "rank": SICK, "at": at, "seconds": stall}} for kind in FAULTS}
    _train(store, seeds, steps, RANKS, faults)
    _train(store, seeds, steps, RANKS - 1, {WITHOUT: {"unseen": 1}})


def _train(store: Store, seeds: Sequence[int], steps: int, ranks: int, runs: dict[str, dict[str, Any]]) -> None:
    missing = [(s, n) for s in seeds for n in runs if store.samples(key_of(n, s)) is None]
    if not missing:
        return
    how = local(f"fixed:steps={INTERVAL},delay=2", steps)
    with Group(ranks, [SYSTEM]) as group:
        for seed, name in missing:
            found = train(group, recipe_of(TASK, seed, how, **runs[name]), steps)
            store.keep(key_of(name, seed), found)
            say(f"{name}, seed {seed}: {found['quality']:.4f}, alarms {found['local']['alarms']}")


def rows(store: Store, seeds: Sequence[int], quick: bool) -> list[Row]:
    """Rows of the cost of each fault against training without the shard of that rank, and of rounds to exclude it."""
    at = QUICK_FAULT_STEP if quick else FAULT_STEP
    found = {n: [Watched.of(store.samples(key_of(n, s))) for s in seeds] for n in (CLEAN, WITHOUT, *FAULTS)}
    base = [one.quality for one in found[WITHOUT]]
    out: list[Row] = []
    for name, trainings in found.items():
        params = {"part": "drills", "fault": name, "ranks": len(trainings[0].paces)}
        cost = mean_estimate(points([one.quality for one in trainings], base))
        target = ACCURACY_COST if name in FAULTS else None
        out.append(make_row("accuracy_cost_of_fault", params, cost, "points", "lower", target=target, by_value=True))
        for guard in trainings[0].local["alarms"]:
            raised = [float(one.local["alarms"][guard]) for one in trainings]
            if any(raised):
                out.append(make_row("alarms", {**params, "guard": guard}, mean_estimate(raised), "rounds", "lower"))
        if name in EXCLUDED:
            latest = exactly(max(rounds_to_exclude(one, at) for one in trainings))
            out.append(make_row("rounds_to_exclude", params, latest, "rounds", "lower", target=ROUNDS_TO_EXCLUDE))
    return out


def rounds_to_exclude(one: Watched, at: int) -> float:
    """Rounds from the fault to the first merge without the faulty rank; all remaining rounds if there is none."""
    excluded = one.paces[SICK]["merges_excluded"]
    first = next((i for i in range(at, len(excluded)) if excluded[i] > excluded[at - 1]), len(excluded))
    return float((first - at) // INTERVAL + 1)
