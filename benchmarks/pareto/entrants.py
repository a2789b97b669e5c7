"""Trainings and methods of `frontier`. Pure; standard library only.

Does not: train, measure, or judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common.contest import NetCase

MOMENTUM = 0.9
#: Number of points of the loss curve of a training.
POINTS = 30
#: Steps between two merges of Local SGD (Stich, 2019) and of the fixed local updates.
INTERVAL = 8
#: Merges of DiLoCo in a training, whatever its length: in short ones the interval shrinks with them.
DILOCO_MERGES = 20

DDP, NONE, ALONE = "ddp", "none", "alone"
COMPRESSION_AUTO, LOCAL_AUTO, BOTH_AUTO = "compression_auto", "local_auto", "both_auto"
POWERSGD = ("powersgd_1", "powersgd_2", "powersgd_4", "powersgd_8")
DILOCO = ("diloco", "diloco_tuned")


@dataclass(frozen=True)
class Method:
    """A system of benchmarks/common/systems.py with its settings.

    `live`: the behaviour follows the link, so a training is run on every link. `local`: ranks make steps of their own.
    `period`: steps after which the behaviour repeats.
    """

    system: str
    how: Mapping[str, Any] = field(default_factory=dict)
    live: bool = False
    local: bool = False
    period: int = 1


@dataclass(frozen=True)
class Training:
    """A net of benchmarks/training/nets.py, an optimizer, and a number of steps.

    `lr` and `local_lr`: learning rates of methods that average gradients, and of those that make local steps.
    """

    task: str
    optimizer: str
    batch: int
    steps: int
    lr: float
    local_lr: float

    @property
    def key(self) -> str:
        """Key of the training in the partial file."""
        return f"{self.task}/{self.optimizer}/{self.batch}/{self.steps}"

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the training in result rows."""
        return {"task": self.task, "optimizer": self.optimizer, "batch": self.batch, "steps": self.steps}

    @property
    def rise(self) -> int:
        """Number of steps in which the learning rate rises: 5 % for a net with attention."""
        return self.steps // 20 if self.task == "transformer" else 0


@dataclass(frozen=True)
class Entry:
    """A method with a seed. `factor`: the learning rate over that of the training."""

    name: str
    seed: int
    factor: float = 1.0


@dataclass(frozen=True)
class Case(NetCase):
    """A training on a network."""

    training: Training

    @property
    def key(self) -> str:
        """Key of the case in the partial file."""
        return f"{super().key}/{self.training.key}"

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the case in result rows."""
        return {**super().params, **self.training.params}


#: Names of a net and an optimizer -> batch of a rank, and learning rates as in Training.
_SETTINGS = {
    ("cnn", "sgd"): (32, 0.05, 0.05),
    ("convnet", "sgd"): (16, 0.05, 0.05),
    ("transformer", "sgd"): (8, 0.1, 0.1),
    ("transformer", "adamw"): (8, 0.016, 0.008),
    ("transformer", "muon"): (8, 0.016, 0.016),
}
TASKS = tuple(f"{task}_{optimizer}" for task, optimizer in _SETTINGS)


def trainings(tasks: Sequence[str], lengths: Sequence[int]) -> list[Training]:
    """Returns the trainings of these TASKS with each of the numbers of steps."""
    return [
        Training(task, optimizer, batch, steps, lr, local_lr)
        for (task, optimizer), (batch, lr, local_lr) in _SETTINGS.items()
        for steps in lengths
        if f"{task}_{optimizer}" in tasks
    ]


def methods(training: Training) -> dict[str, Method]:
    """Returns all methods of a training by name.

    A setting that names its reduction algorithm does the same on every link.
    """
    rounds = max(INTERVAL, training.steps // DILOCO_MERGES)
    fixed = "group_topk:rate=1%,wire=gather" if training.optimizer == "sgd" else "powersgd:rank=4"
    auto = {"interval": "auto", "steps": training.steps}
    after_eight = {"interval": f"fixed:steps={INTERVAL}", "compression": "int8", "steps": training.steps}
    return {
        DDP: Method("gloo"),
        "ddp_fp16": Method("gloo_fp16"),
        **{name: Method("gloo_powersgd", {"rank": int(name.partition("_")[2])}) for name in POWERSGD},
        "local_sgd": _blocking(training, INTERVAL, "none"),
        "diloco": _blocking(training, rounds, {"lr": 0.7, "momentum": 0.9}),
        "diloco_tuned": _blocking(training, rounds, {"lr": 0.7, "momentum": 0.5}),
        NONE: Method("sirtaki", {"compression": "none"}),
        "ours_int8": Method("sirtaki", {"compression": "int8:wire=scatter"}),
        "ours_fixed": Method("sirtaki", {"compression": fixed}),
        # The delay of a merge follows the link.
        "ours_local": Method("sirtaki", {"compression": "none", "local_updates": after_eight}, live=True, local=True),
        COMPRESSION_AUTO: Method("sirtaki", {"compression": "auto"}, live=True),
        LOCAL_AUTO: Method("sirtaki", {"compression": "none", "local_updates": auto}, live=True, local=True),
        BOTH_AUTO: Method("sirtaki", {"compression": "auto", "local_updates": auto}, live=True, local=True),
        ALONE: Method("alone"),
    }


def _blocking(training: Training, interval: int, outer: Mapping[str, Any] | str) -> Method:
    """Returns local steps whose merges of float32 models stop the training, as published, without guards."""
    local = {
        "interval": f"fixed:steps={interval},delay=0,warmup=0,guard=off",
        "outer": outer,
        "compression": "none",
        "optimizer_state": 0,
        "steps": training.steps,
    }
    return Method("sirtaki", {"compression": "none", "local_updates": local}, local=True, period=interval)


#: Names of all methods.
METHODS = tuple(methods(Training("cnn", "sgd", 1, 1, 0.0, 0.0)))


def with_references(names: Sequence[str]) -> list[str]:
    """Returns the names in the order of METHODS, with the methods that every case is compared to."""
    return [name for name in METHODS if name in (DDP, ALONE, *names)]


def recipe_of(training: Training, entry: Entry, **more: Any) -> dict[str, Any]:
    """Recipe of a training, as benchmarks/training/learning.py reads it. `more`: further keys of the recipe."""
    method = methods(training)[entry.name]
    return {
        "net": training.task,
        "optimizer": training.optimizer,
        "batch": training.batch,
        "seed": entry.seed,
        "lr": entry.factor * (training.local_lr if method.local else training.lr),
        "momentum": MOMENTUM,
        "rise": training.rise,
        "steps": training.steps,
        "how": dict(method.how),
        **more,
    }


def spacing(training: Training) -> int:
    """Steps between two points of the loss curve."""
    return max(training.steps // POINTS, 1)
