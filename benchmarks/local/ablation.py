"""Cost of correction, delay and interval to a training, one by one, with fixed settings.

Intervals and delays are fixed, and guards are off, so the result of a training does not depend on measured times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.group import Group
from benchmarks.common.rig import say
from benchmarks.local.cases import RANKS, SYSTEM, Task, Watched, final_loss, local, points, recipe_of, train
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import exactly, mean_estimate

TASK = Task("cnn", 32, 468)
CORRECTED, OVERWRITE = "corrected", "overwrite"
#: Interval and delay of the two settings whose curves are drawn.
DRAWN = (32, 24)


@dataclass(frozen=True)
class Setting:
    """Interval H, delay D and merge of a training; H = 1 is synchronous."""

    steps: int
    delay: int = 0
    merge: str = CORRECTED

    @property
    def key(self) -> str:
        """Key of the setting in the partial file."""
        return f"{self.steps}/{self.delay}/{self.merge}"

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of DistributedOptimizer for the setting."""
        if self.steps == 1:
            return {}
        text = f"fixed:steps={self.steps},delay={self.delay},warmup=0,guard=off"
        return local(text, TASK.steps, merge=self.merge, outer="none")

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the setting in result rows."""
        return {"part": "ablation", "interval": self.steps, "delay": self.delay, "merge": self.merge, "ranks": RANKS}


SYNCHRONOUS = Setting(1)
_DELAYS = {8: (0, 2, 6), 32: (0, 8, 24)}
#: Settings without a delay have no OVERWRITE variant: without a delay no local progress is overwritten.
SETTINGS = (
    SYNCHRONOUS,
    *(
        Setting(steps, delay, merge)
        for steps, delays in _DELAYS.items()
        for delay in delays
        for merge in ((CORRECTED, OVERWRITE) if delay else (CORRECTED,))
    ),
)


def measure(store: Store, seeds: Sequence[int], steps: int) -> None:
    """Runs the trainings that the store does not hold yet."""
    missing = [(seed, one) for seed in seeds for one in SETTINGS if store.samples(key_of(one, seed)) is None]
    if not missing:
        return
    with Group(RANKS, [SYSTEM]) as group:
        for seed, one in missing:
            found = train(group, recipe_of(TASK, seed, one.how), steps)
            store.keep(key_of(one, seed), found)
            say(f"H {one.steps}, D {one.delay}, {one.merge}, seed {seed}: {found['quality']:.4f}")


def key_of(one: Setting, seed: int) -> str:
    """Key of a training in the partial file."""
    return f"ablation/{one.key}/{seed}"


def rows(store: Store, seeds: Sequence[int]) -> list[Row]:
    """Rows of loss and accuracy against synchronous training, and of the loss by overwriting, seed by seed."""
    found = {one: [Watched.of(store.samples(key_of(one, seed))) for seed in seeds] for one in SETTINGS}
    out: list[Row] = []
    base = [one.quality for one in found[SYNCHRONOUS]]
    for setting, trainings in found.items():
        losses = mean_estimate([final_loss(one) for one in trainings])
        out.append(make_row("loss", setting.params, losses, "nats", "lower"))
        cost = mean_estimate(points([one.quality for one in trainings], base))
        out.append(make_row("accuracy_cost", setting.params, cost, "points", "lower"))
        if setting.merge == OVERWRITE:
            other = found[Setting(setting.steps, setting.delay)]
            lost = [final_loss(mine) - final_loss(theirs) for mine, theirs in zip(trainings, other, strict=True)]
            figure = mean_estimate(lost)
            out.append(
                make_row("loss_by_overwriting", setting.params, figure, "nats", "higher", target=0.0, by_value=True)
            )
            share = exactly(sum(one > 0 for one in lost) / len(lost))
            out.append(
                make_row("seeds_in_which_overwriting_loses", setting.params, share, "share", "higher", target=1.0)
            )
    return out + _curves(found)


def _curves(found: dict[Setting, list[Watched]]) -> list[Row]:
    """Rows of the points of the drawn curves: loss, and drift of the models."""
    out: list[Row] = []
    for setting in (SYNCHRONOUS, Setting(*DRAWN), Setting(*DRAWN, OVERWRITE)):
        for place, (step, _) in enumerate(found[setting][0].curve):
            params = {**setting.params, "step": int(step)}
            losses = mean_estimate([one.curve[place][1] for one in found[setting]])
            out.append(make_row("loss_at_step", params, losses, "nats", "lower"))
            if setting.steps > 1:
                drift = mean_estimate([one.paces[0]["divergence"][int(step) - 1] for one in found[setting]])
                out.append(make_row("drift_at_step", params, drift, "ratio", "lower"))
    return out
