"""Doors of `doors`: programs of other libraries, and the ways in which their gradients get averaged. Pure.

Does not: train, measure, or judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from benchmarks.common.contest import NetCase

DDP, LIGHTNING, HUGGINGFACE, FSDP = DOORS = ("ddp", "lightning", "huggingface", "fsdp")
#: Doors that are trainers of other libraries -> name of the library and of its environment.
LIBRARIES = {LIGHTNING: ("Lightning", "lightning"), HUGGINGFACE: ("Hugging Face", "transformers")}
#: The program without the line of Sirtaki, with it, with it and local updates, and without communication.
PLAIN, OURS, LOCAL, ALONE = "plain", "sirtaki", "sirtaki_local", "alone"
#: Compressions, and caps of the buckets of DDP in MB, with which its step is compared to that of DistributedOptimizer.
#: accelerate() makes default buckets small. With a cap of 25, the default of torch, these nets are one bucket.
COMPRESSIONS = ("none", "auto")
DEFAULT_CAP, TORCH_CAP = BUCKET_CAPS = ("default", "25")
#: The ranks share the cores of this machine, or two of them have one each, which compute leaves free.
SHARED, OWN = PROCESSORS = ("shared", "own")
#: Ranks with processors of their own, and seconds of a step of theirs.
OWN_RANKS, OWN_SECONDS = 2, 0.02
OPTIMIZER, ACCELERATED = "DistributedOptimizer", "accelerate"
#: DDP with a hook that sends nothing: the bound of every hook.
IDLE_HOOK = "idle_hook"

#: Nets on Fashion-MNIST, with SGD and momentum. The second one computes less for each byte that it sends.
TASKS = ("cnn", "perceptron")
BATCH, LR, MOMENTUM = 32, 0.05, 0.9
#: Points of the loss curve of a training.
POINTS = 30
#: Ranks that share a model under FSDP: those of a host.
SHARDS = 2


@dataclass(frozen=True)
class Way:
    """A system of benchmarks/common/systems.py with its settings. `how`: arguments of train()."""

    system: str
    how: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """A setting with which steps are timed in turns."""

    compression: str
    bucket_cap_mb: str = DEFAULT_CAP
    processors: str = SHARED

    @property
    def key(self) -> str:
        """Key of the setting in the partial file."""
        return f"{self.compression}/{self.bucket_cap_mb}/{self.processors}"

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the setting in result rows, in place of those of the case."""
        ranks = {"ranks": OWN_RANKS} if self.processors == OWN else {}
        return {
            "compression": self.compression,
            "bucket_cap_mb": self.bucket_cap_mb,
            "processors": self.processors,
        } | ranks

    @property
    def of_recipe(self) -> dict[str, float]:
        """Further keys of the recipe of a training."""
        return {"replayed": OWN_SECONDS} if self.processors == OWN else {}

    @property
    def of_ddp(self) -> dict[str, float]:
        """Arguments of DistributedDataParallel."""
        return {} if self.bucket_cap_mb == DEFAULT_CAP else {"bucket_cap_mb": float(self.bucket_cap_mb)}


SETTINGS = tuple(Setting(*one) for one in product(COMPRESSIONS, BUCKET_CAPS, PROCESSORS))


@dataclass(frozen=True)
class DoorCase(NetCase):
    """A door on a network. `net`: with ranks a host for FSDP. `task`: the net that is trained."""

    door: str
    task: str = TASKS[0]

    @property
    def key(self) -> str:
        """Key of the case in the partial file."""
        return f"{super().key}/{self.door}/{self.task}"

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the case in result rows."""
        return {**super().params, "door": self.door, "task": self.task}


def ways(door: str, steps: int) -> dict[str, Way]:
    """Returns the ways of a door by name. Those of Lightning and Hugging Face are known to their programs."""
    if door == FSDP:
        local = {"interval": "auto", "steps": steps}
        return {
            PLAIN: Way("fsdp", {"shards": SHARDS, "replicas": PLAIN}),
            OURS: Way("fsdp", {"shards": SHARDS, "replicas": OURS}),
            LOCAL: Way("fsdp", {"shards": SHARDS, "replicas": OURS, "local_updates": local}),
            ALONE: Way("fsdp", {"shards": SHARDS, "replicas": ALONE}),
        }
    return {PLAIN: Way("gloo"), OURS: Way("ddp" if door == DDP else "gloo"), ALONE: Way("alone")}


def recipe_of(task: str, seed: int, steps: int, how: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Recipe of a training, as benchmarks/training/learning.py reads it. `more`: further keys of the recipe."""
    fixed = {"net": task, "batch": BATCH, "lr": LR, "momentum": MOMENTUM}
    return {**fixed, "seed": seed, "steps": steps, "how": dict(how), **more}


def spacing(steps: int) -> int:
    """Steps between two points of the loss curve."""
    return max(steps // POINTS, 1)
