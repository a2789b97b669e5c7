"""One training of `frontier`, step by step: loss, seconds and bytes. Pure; standard library only.

Seconds count from the beginning of the first step. They are measured in the training itself, or composed: losses from a
training without a link, seconds from the first steps on the link and from later blocks of steps there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from benchmarks.statistics import median

MEASURED, COMPOSED = "measured", "composed"
#: Steps of a block of a measured training whose mean is one sample of the step time.
BLOCK = 16


@dataclass(frozen=True)
class Pace:
    """Seconds and bytes of the steps of a method on a link, whatever the losses.

    `first`, `first_sent`: seconds and bytes of each of the first steps of a training. `blocks`, `block_sent`: of a step
    in each later block, on average. Bytes are those of the rank that sends most, at its network interface.
    """

    first: list[float]
    first_sent: list[float]
    blocks: list[float]
    block_sent: list[float]

    def step(self) -> float:
        """Median seconds of a step after the first ones."""
        return median(self.blocks)

    def stretched(self, steps: int) -> tuple[list[float], list[float]]:
        """Returns the seconds and the bytes from the beginning to the end of each of `steps` steps."""
        more = max(0, steps - len(self.first))
        seconds = [*self.first[:steps], *[self.step()] * more]
        sent = [*self.first_sent[:steps], *[median(self.block_sent)] * more]
        return list(accumulate(seconds)), list(accumulate(sent))


@dataclass(frozen=True)
class Run:
    """One training. `ends`, `sent`: seconds and bytes from the beginning to the end of each step."""

    curve: list[list[float]]  # steps, and loss of the common model of the ranks on a sample of the training data
    ends: list[float]
    sent: list[float]
    step: float  # median seconds of a step
    quality: float
    clock: str
    exposed: list[float] | None = None  # seconds, of each step, in which the rank waited that waited least

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.curve[-1][0])

    @property
    def final_loss(self) -> float:
        """Loss of the final model, after drain()."""
        return self.curve[-1][1]

    def seconds_at(self, step: float) -> float:
        """Seconds from the beginning to a step, between two of them."""
        return between(self.ends, step)

    def sent_at(self, step: float) -> float:
        """Bytes from the beginning to a step, between two of them."""
        return between(self.sent, step)


def between(totals: Sequence[float], step: float) -> float:
    """Returns the total after a step that may lie between two steps; 0 at step 0."""
    low = int(step)
    before = totals[low - 1] if low > 0 else 0.0
    return before + (step - low) * (totals[min(low, len(totals) - 1)] - before)


def measured(kept: Mapping[str, Any]) -> Run:
    """Makes the run of a training on the link; `kept`: a result of train() of benchmarks/local/cases.py."""
    ends = [float(end) for end in kept["ends"]]
    by_rank = (_differences(pace["exposed"]) for pace in kept["paces"])
    later = range(min(len(ends) // 2, len(ends) - 2), len(ends) - 1)
    cuts = [*later[::BLOCK], len(ends) - 1]
    blocks = [(ends[b] - ends[a]) / (b - a) for a, b in pairwise(cuts)]
    return Run(
        curve=kept["curve"],
        ends=ends,
        sent=list(accumulate(map(float, kept["sent"]))),
        step=median(blocks),
        quality=kept["quality"],
        clock=MEASURED,
        exposed=[min(of_step) for of_step in zip(*by_rank, strict=True)],
    )


def composed(curve: list[list[float]], quality: float, pace: Pace) -> Run:
    """Makes the run of a training whose losses do not depend on the link."""
    ends, sent = pace.stretched(int(curve[-1][0]))
    return Run(curve, ends, sent, pace.step(), quality, COMPOSED)


def _differences(values: Sequence[float]) -> list[float]:
    return [value - before for value, before in zip(values, [0.0, *values], strict=False)]
