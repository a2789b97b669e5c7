"""Statistics of the benchmark rig: medians, quartiles, bootstrap intervals, verdicts. Pure; standard library only."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

RESAMPLES = 2000
CONFIDENCE = 0.95
_SEED = 20_240_601


def quantile(values: Sequence[float], share: float) -> float:
    """Returns a quantile by linear interpolation between order statistics; raises an error if `values` is empty."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """Returns the middle value."""
    return quantile(values, 0.5)


@dataclass(frozen=True)
class Estimate:
    """A figure with its quartiles and the bootstrap interval of its median (95 %)."""

    value: float
    q1: float
    q3: float
    low: float
    high: float
    n: int

    def spread(self) -> dict[str, float]:
        """Spread in the form of result files."""
        return {"q1": self.q1, "q3": self.q3, "low": self.low, "high": self.high}


def _interval(draws: Sequence[float]) -> tuple[float, float]:
    tail = (1.0 - CONFIDENCE) / 2.0
    return quantile(draws, tail), quantile(draws, 1.0 - tail)


def _bootstrap(n: int, figure: Callable[[list[int]], float]) -> tuple[float, float]:
    # Seeded: the same samples give the same file.
    generator = random.Random(_SEED)
    return _interval([figure(generator.choices(range(n), k=n)) for _ in range(RESAMPLES)])


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the median of `values` with its spread."""
    low, high = _bootstrap(len(values), lambda chosen: median([values[i] for i in chosen]))
    return Estimate(median(values), quantile(values, 0.25), quantile(values, 0.75), low, high, len(values))


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Returns the mean of few `values`, such as one a seed, with the bootstrap interval of the mean."""

    def mean(chosen: Sequence[int]) -> float:
        return sum(values[i] for i in chosen) / len(chosen)

    low, high = _bootstrap(len(values), mean)
    middle = mean(range(len(values)))
    return Estimate(middle, quantile(values, 0.25), quantile(values, 0.75), low, high, len(values))


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """Returns the ratio of medians of interleaved samples.

    Whole pairs are resampled, so that noise that hit both cancels. The quartiles are those of the ratio pair by pair.
    """
    if len(numerator) != len(denominator):
        raise ValueError(f"{len(numerator)} and {len(denominator)} samples are not pairs")
    pairs = list(zip(numerator, denominator, strict=True))

    def ratio(chosen: list[int]) -> float:
        return median([pairs[i][0] for i in chosen]) / median([pairs[i][1] for i in chosen])

    low, high = _bootstrap(len(pairs), ratio)
    each = [a / b for a, b in pairs]
    return Estimate(ratio(list(range(len(pairs)))), quantile(each, 0.25), quantile(each, 0.75), low, high, len(pairs))


def point(figure: Estimate, value: float) -> Estimate:
    """Returns a number about a figure, such as an edge of its interval, without a spread of its own."""
    return replace(figure, value=value, q1=value, q3=value, low=value, high=value)


def exactly(value: float) -> Estimate:
    """Returns a number whose interval is the number itself: counted or computed, not sampled."""
    return estimate([value])


def target_met(figure: Estimate, target: float | None, better: str) -> bool | None:
    """Returns False only if the whole interval lies beyond the target; None without a target."""
    if better not in ("higher", "lower"):
        raise ValueError(f"better is '{better}', not 'higher' or 'lower'")
    if target is None:
        return None
    return figure.high >= target if better == "higher" else figure.low <= target
