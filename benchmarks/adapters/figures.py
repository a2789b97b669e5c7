"""Rows of `doors`. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.adapters.cases import (
    ACCELERATED,
    ALONE,
    DDP,
    FSDP,
    HUGGINGFACE,
    IDLE_HOOK,
    LIGHTNING,
    OPTIMIZER,
    PLAIN,
    DoorCase,
    Setting,
)
from benchmarks.common.contest import ratio_row
from benchmarks.common.rig import LOOPBACK
from benchmarks.local.cases import step_at
from benchmarks.pareto.runs import between
from benchmarks.results import Row, make_row
from benchmarks.statistics import estimate, exactly, mean_estimate, median
from benchmarks.training.trainings import LOSS_EXCESS

#: Largest step of DDP with accelerate() over that of DistributedOptimizer.
STEP_OVER_OPTIMIZER = 1.03
#: Door -> times as fast as the program without the line: over all steps, and until its loss.
OVER_PLAIN = {LIGHTNING: 2.0, HUGGINGFACE: 2.0}
OVER_PLAIN_TO_LOSS = {FSDP: 3.0}
#: Rate in Mbit/s of the links on which the speed-ups have targets.
TARGET_RATE = 100.0


@dataclass(frozen=True)
class Training:
    """One training: seconds to the end of each step, points of the loss curve, bytes of the rank that sends most."""

    ends: list[float]
    curve: list[list[float]]
    sent: int

    @property
    def seconds(self) -> float:
        """Seconds of all steps."""
        return self.ends[-1]

    @property
    def step(self) -> float:
        """Median seconds of a step of the later half."""
        return median([end - begin for begin, end in pairwise(self.ends[len(self.ends) // 2 - 1 :])])

    @property
    def loss(self) -> float:
        """Loss of the final model."""
        return self.curve[-1][1]

    def seconds_to(self, loss: float) -> float | None:
        """Seconds until the loss is at most this one; None if it never is."""
        step = step_at(self, loss)
        return None if step is None else between(self.ends, step)


def door_rows(case: DoorCase, trainings: Mapping[str, Sequence[Training]]) -> list[Row]:
    """Rows of the trainings through one door: every way, and its speed-up over the program without the line."""
    plain, alone = trainings[PLAIN], trainings[ALONE]
    rows = []
    for name, runs in trainings.items():
        params = {**case.params, "steps": len(plain[0].ends), "way": name}
        rows += _way_rows(case, params, runs, None if name == ALONE else alone)
        if name not in (PLAIN, ALONE):
            rows += _against_rows(case, params, runs, plain, median([one.seconds for one in alone]))
    return rows


def _way_rows(
    case: DoorCase, params: Mapping[str, Any], runs: Sequence[Training], alone: Sequence[Training] | None
) -> list[Row]:
    whole = None if alone is None else median([one.seconds for one in alone])
    step = None if alone is None else median([one.step for one in alone])
    rows = [
        make_row("seconds", params, estimate([one.seconds for one in runs]), "s", "lower", bound=whole),
        make_row("step_seconds", params, estimate([one.step for one in runs]), "s", "lower", bound=step),
    ]
    if alone is not None:
        rows.append(make_row("final_loss", params, mean_estimate([one.loss for one in runs]), "nats", "lower"))
    if alone is not None and case.net != LOOPBACK:
        rows.append(make_row("sent_bytes", params, estimate([one.sent for one in runs]), "bytes", "lower"))
    return rows


def _against_rows(
    case: DoorCase, params: Mapping[str, Any], ours: Sequence[Training], plain: Sequence[Training], alone: float
) -> list[Row]:
    """Rows of the speed-ups; 0 where a training misses the loss. A curve of one point has no seconds to a loss."""
    judged = case.params["rate_mbit"] == TARGET_RATE
    seconds = [one.seconds for one in plain]
    bound = median(seconds) / alone
    target = OVER_PLAIN.get(case.door) if judged else None
    mine = [one.seconds for one in ours]
    rows = [ratio_row("speedup", params, seconds, mine, PLAIN, bound=bound, target=target)]
    above = mean_estimate([one.loss - other.loss for one, other in zip(ours, plain, strict=True)])
    rows.append(make_row("loss_above_plain", params, above, "nats", "lower"))
    if len(plain[0].curve) < 2:
        return rows
    goals = [one.loss + LOSS_EXCESS for one in plain]
    reached = [one.seconds_to(goal) for one, goal in zip(ours, goals, strict=True)]
    theirs = [one.seconds_to(goal) for one, goal in zip(plain, goals, strict=True)]
    target = OVER_PLAIN_TO_LOSS.get(case.door) if judged else None
    if None in reached:
        miss = {"baseline": (PLAIN, 1.0), "target": target}
        return [*rows, make_row("speedup_to_loss", params, exactly(0.0), "ratio", "higher", **miss)]
    known = [[one for one in of_way if one is not None] for of_way in (theirs, reached)]
    return [*rows, ratio_row("speedup_to_loss", params, *known, PLAIN, bound=bound, target=target)]


def accelerated_rows(case: DoorCase, setting: Setting, samples: Mapping[str, Sequence[float]]) -> list[Row]:
    """Rows of steps of DDP with accelerate() against DistributedOptimizer with the same settings and DDP, in turns.

    No step of DDP can be shorter than that with a hook that sends nothing.
    """
    assert case.door == DDP
    params = {**case.params, **setting.params}
    bound = median(samples[ALONE])
    bounds = dict.fromkeys((ACCELERATED, PLAIN), median(samples[IDLE_HOOK]))
    rows = [
        make_row("turn_seconds", {**params, "way": name}, estimate(of_way), "s", "lower", bound=bounds.get(name, bound))
        for name, of_way in samples.items()
    ]
    ours, theirs, plain = samples[ACCELERATED], samples[OPTIMIZER], samples[PLAIN]
    # The value judges, because the interval of a noisy ratio reaches to the target from far above.
    judged: dict[str, Any] = {"better": "lower", "target": STEP_OVER_OPTIMIZER, "by_value": True}
    rows.append(ratio_row("step_over_optimizer", params, ours, theirs, OPTIMIZER, **judged))
    most = median(plain) / bound
    return [*rows, ratio_row("step_speedup", params, plain, ours, PLAIN, bound=most)]
