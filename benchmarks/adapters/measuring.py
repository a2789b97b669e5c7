"""Measurements of `doors`: trainings from their first step on, each in processes of its own, and steps in turns.

Owned by: the main process of the benchmark, one thread. Does not: choose the cases, or make figures of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.adapters.cases import (
    ACCELERATED,
    ALONE,
    IDLE_HOOK,
    LIBRARIES,
    OPTIMIZER,
    OWN,
    OWN_RANKS,
    PLAIN,
    DoorCase,
    Setting,
    Way,
    recipe_of,
    spacing,
    ways,
)
from benchmarks.common.group import Group
from benchmarks.common.rig import SMALL_BURST_MS, Options, network
from benchmarks.netns import INTERFACE, Net
from benchmarks.results import ROOT
from benchmarks.training.trainings import TRAINING_SECONDS, time_steps

#: Steps before the first timed block, in which plans settle; number of blocks, and steps of a block.
WARM_STEPS, BLOCKS, BLOCK_STEPS = 64, 12, 10
QUICK_WARM_STEPS, QUICK_BLOCKS, QUICK_BLOCK_STEPS = 4, 2, 2


def library_python(door: str) -> str | None:
    """Path of the interpreter that has the library of a door; None if the library is missing."""
    if door not in LIBRARIES:
        return sys.executable
    python: Path = ROOT / ".cache/compat" / LIBRARIES[door][1] / "bin/python"
    return str(python) if python.is_file() else None


def train(case: DoorCase, net: Net | None, name: str, seed: int, steps: int) -> dict[str, Any]:
    """Trains through a door from the beginning.

    Returns `ends`, the seconds from the beginning to the end of each step on the last rank, `curve`, the losses on a
    sample of the training data by step, and `sent`, the bytes of the rank that sends most.
    """
    way = ways(case.door, steps)[name]
    interface = INTERFACE if net is not None and name != ALONE else ""
    python = library_python(case.door)
    assert python is not None
    with Group(case.size, [way.system], net=net, python=python) as group:
        if case.door in LIBRARIES:
            recipe = recipe_of(case.task, seed, steps, {}, interface=interface)
            found = group.call("fit", timeout=TRAINING_SECONDS, door=case.door, way=name, recipe=recipe)
            curve = [[float(steps), fmean(one["loss"] for one in found)]]
            return _training(found, curve)
        more = {"interface": interface, "curve": spacing(steps)}
        return _learn(group, way, recipe_of(case.task, seed, steps, way.how, **more))


def _learn(group: Group, way: Way, recipe: dict[str, Any]) -> dict[str, Any]:
    group.call("learn_prepare", system=way.system, name="training", recipe=recipe)
    group.call("learn_run", timeout=TRAINING_SECONDS, name="training", steps=recipe["steps"])
    found = [
        {"begin": one["starts"][0][1], "ends": one["ends"], "sent": sum(one["sent"])}
        for one in group.call("learn_watched", name="training")
    ]
    curves = group.call("learn_curve", name="training")
    return _training(found, [[at[0][0], fmean(loss for _, loss in at)] for at in zip(*curves, strict=True)])


def _training(found: list[dict[str, Any]], curve: list[list[float]]) -> dict[str, Any]:
    begin = min(one["begin"] for one in found)
    ends = [max(of_step) - begin for of_step in zip(*(one["ends"] for one in found), strict=True)]
    return {"ends": ends, "curve": curve, "sent": max(one["sent"] for one in found)}


def time_accelerated(options: Options, case: DoorCase, setting: Setting) -> dict[str, list[float]]:
    """Measures steps of DDP with accelerate(), of DistributedOptimizer with the same settings, of DDP, with and without
    a hook that sends nothing, and alone. Only DDP has buckets.
    """
    how = {"compression": setting.compression}
    settings = {ACCELERATED: ("ddp", {**how, "of_ddp": setting.of_ddp}), OPTIMIZER: ("sirtaki", how)}
    settings |= {PLAIN: ("gloo", setting.of_ddp), IDLE_HOOK: ("ddp_idle_hook", setting.of_ddp), ALONE: ("alone", {})}
    more = setting.of_recipe
    trainings = {
        name: (system, recipe_of(case.task, 1, 10_000, given, **more)) for name, (system, given) in settings.items()
    }
    quick = {"warm": QUICK_WARM_STEPS, "blocks": QUICK_BLOCKS, "steps": QUICK_BLOCK_STEPS}
    own = setting.processors == OWN
    size = OWN_RANKS if own else case.size
    with (
        network(case.net, size, strict=not options.quick, burst_ms=SMALL_BURST_MS if own else None) as net,
        Group(size, ["sirtaki", "ddp", "gloo", "ddp_idle_hook", "alone"], net=net) as group,
    ):
        if options.quick:
            return time_steps(group, trainings, **quick)
        return time_steps(group, trainings, warm=WARM_STEPS, blocks=BLOCKS, steps=BLOCK_STEPS)
