"""Gain of outer momentum between merges: paired trainings with the plain mean, with 0.7 and 0.5, and as in DiLoCo.

Intervals and delays are fixed, and guards are off, so the result of a training does not depend on measured times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.group import Group
from benchmarks.common.rig import say
from benchmarks.local.cases import RANKS, SYSTEM, Task, Watched, final_loss, local, recipe_of, train
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import mean_estimate

TASKS = {"cnn": Task("cnn", 32, 468), "transformer": Task("transformer", 4, 480)}
INTERVALS = (8, 16)
PLAIN, MODERATE, DILOCO = "plain", "0.7/0.5", "0.7/0.9"
#: Delay in steps, of each interval: a quarter of it.
_DELAY = 4


@dataclass(frozen=True)
class Setting:
    """Net, interval and outer optimizer of a training."""

    net: str
    steps: int
    outer: str

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the setting in result rows."""
        delay = self.steps // _DELAY
        return {"part": "outer", "net": self.net, "interval": self.steps, "delay": delay, "outer": self.outer}

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of DistributedOptimizer for the setting. `diloco` brings the momentum of 0.9."""
        policy = "diloco" if self.outer == DILOCO else "fixed"
        text = f"{policy}:steps={self.steps},delay={self.steps // _DELAY},warmup=0,guard=off"
        more = {"outer": "none"} if self.outer == PLAIN else {}
        return local(text, TASKS[self.net].steps, compression="none", **more)


SETTINGS = tuple(
    Setting(net, steps, outer) for net in TASKS for steps in INTERVALS for outer in (PLAIN, MODERATE, DILOCO)
)


def key_of(one: Setting, seed: int) -> str:
    """Key of a training in the partial file."""
    return f"outer/{one.net}/{one.steps}/{one.outer}/{seed}"


def measure(store: Store, seeds: Sequence[int], most_steps: int | None) -> None:
    """Runs the trainings that the store does not hold yet, of at most so many steps."""
    missing = [(seed, one) for seed in seeds for one in SETTINGS if store.samples(key_of(one, seed)) is None]
    if not missing:
        return
    with Group(RANKS, [SYSTEM]) as group:
        for seed, one in missing:
            task = TASKS[one.net]
            found = train(group, recipe_of(task, seed, one.how), min(task.steps, most_steps or task.steps))
            store.keep(key_of(one, seed), found)
            say(f"{one.net}, H {one.steps}, {one.outer}, seed {seed}: {found['curve'][-1][1]:.4f}")


def rows(store: Store, seeds: Sequence[int]) -> list[Row]:
    """Rows of the loss, and of the loss above that of the plain mean, seed by seed."""
    losses = {one: [final_loss(Watched.of(store.samples(key_of(one, seed)))) for seed in seeds] for one in SETTINGS}
    out: list[Row] = []
    for one, found in losses.items():
        params = {**one.params, "ranks": RANKS}
        out.append(make_row("outer_loss", params, mean_estimate(found), "nats", "lower"))
        if one.outer != PLAIN:
            base = losses[Setting(one.net, one.steps, PLAIN)]
            above = mean_estimate([mine - plain for mine, plain in zip(found, base, strict=True)])
            out.append(make_row("outer_loss_above_plain", params, above, "nats", "lower"))
    return out
