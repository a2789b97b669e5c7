"""Trainings of the parts of `local_updates`: runs and reads them. Runs in the main process, one thread.

Does not: choose the trainings, or judge them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from benchmarks.common.group import Group
from benchmarks.netns import Net
from benchmarks.training.learning import PACE
from benchmarks.training.trainings import TRAINING_SECONDS

MOMENTUM = 0.9
RANKS = 4
#: Number of points of the curve of a training.
POINTS = 24
#: Loss that stands for a training that has diverged.
DIVERGED = 1e6
SYSTEM = "sirtaki"


@dataclass(frozen=True)
class Task:
    """A net of benchmarks/training/nets.py, and the settings of its training."""

    net: str
    batch: int
    steps: int
    lr: float = 0.05


@dataclass(frozen=True)
class Watched:
    """Records of a training, step by step, and its results over all ranks."""

    curve: list[list[float]]  # steps, and loss of the common model of the ranks on a sample of the training data
    ends: list[float]  # seconds from the start of the first step to the end of each step on the last rank
    paces: list[dict[str, list[float]]]  # by rank: the keys of benchmarks.training.learning.PACE, "exposed"; by step
    quality: float
    local: dict[str, Any]  # local_stats() of the first rank at the end

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Watched:
        """Makes the records from an entry of a partial file."""
        return cls(**{field.name: kept[field.name] for field in fields(cls)})


class Curved(Protocol):
    """A training with its loss curve, as in Watched."""

    @property
    def curve(self) -> list[list[float]]:
        """Steps, and the loss after each."""


def local(interval: str, steps: int, **more: Any) -> dict[str, Any]:
    """Arguments of DistributedOptimizer. `more`: further arguments of LocalUpdates."""
    return {"local_updates": {"interval": interval, "steps": steps, **more}}


def recipe_of(task: Task, seed: int, how: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Recipe of the training, as benchmarks/training/learning.py reads it. `more`: further keys of the recipe."""
    return {
        "net": task.net,
        "batch": task.batch,
        "seed": seed,
        "lr": task.lr,
        "momentum": MOMENTUM,
        "steps": task.steps,
        "how": dict(how),
        "watch": "local",
        "curve": max(task.steps // POINTS, 1),
        **more,
    }


def train(group: Group, recipe: dict[str, Any], steps: int, system: str = SYSTEM) -> dict[str, Any]:
    """Trains from the beginning, in the processes of `group`; returns the fields of Watched.

    A recipe with an interface adds `sent`, the bytes of each step on the rank that sends most.
    """
    name = "training"
    group.call("learn_prepare", system=system, name=name, recipe=recipe)
    begin = time.monotonic()
    group.call("learn_run", timeout=TRAINING_SECONDS, name=name, steps=steps)
    watched = group.call("learn_watched", name=name)
    outcome = group.call("learn_outcome", name=name, last=1)
    curves = group.call("learn_curve", name=name)
    group.call("learn_drop", names=[name])
    if len({one["digest"] for one in outcome}) != 1:
        raise AssertionError(f"models differ after drain(): {recipe}")
    keys = (*PACE, "exposed")
    return {
        "curve": [[of_step[0][0], _mean([loss for _, loss in of_step])] for of_step in zip(*curves, strict=True)],
        "ends": [max(ends) - begin for ends in zip(*(one["ends"] for one in watched), strict=True)],
        "paces": [{key: [row[i] for row in one["paces"]] for i, key in enumerate(keys)} for one in watched],
        "quality": sum(one["quality"] for one in outcome),
        "local": watched[0]["local"],
        "sent": max((one["sent"] for one in watched), key=sum),
    }


def train_afresh(net: Net | None, recipe: dict[str, Any], steps: int, ranks: int = RANKS) -> dict[str, Any]:
    """Trains in processes of its own, so that the link is unknown at first; returns the fields of Watched."""
    with Group(ranks, [SYSTEM], net=net) as group:
        return train(group, recipe, steps)


def final_loss(one: Watched) -> float:
    """Loss of the final model."""
    return one.curve[-1][1]


def step_at(one: Curved, target: float) -> float | None:
    """Step, between two points of the curve, from which on the loss is at most the target; None if there is none."""
    reached = None
    for (step, loss), (before, higher) in zip(one.curve[:0:-1], one.curve[-2::-1], strict=True):
        if loss > target:
            return reached
        reached = step if higher <= target else step - (step - before) * (target - loss) / (higher - loss)
    return reached


def _mean(losses: Sequence[float]) -> float:
    """Mean of the losses; DIVERGED if the mean is larger or not a finite number."""
    mean = sum(losses) / len(losses)
    return min(mean, DIVERGED) if math.isfinite(mean) else DIVERGED


def points(shares: Sequence[float], others: Sequence[float]) -> list[float]:
    """Percentage points by which each of `shares` is below its partner in `others`."""
    return [100 * (other - share) for share, other in zip(shares, others, strict=True)]
