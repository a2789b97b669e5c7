"""The statistics by which benchmark targets are judged."""

from __future__ import annotations

import random

import pytest

from benchmarks.statistics import Estimate, estimate, median, paired_ratio, quantile, target_met


def test_quantile_interpolates_between_order_statistics() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([1.0, 2.0, 3.0, 4.0, 5.0], 0.25) == 2.0
    assert quantile([7.0], 0.9) == 7.0


def test_quantile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_estimate_holds_median_quartiles_and_an_interval_around_it() -> None:
    generator = random.Random(3)
    figure = estimate([generator.gauss(10.0, 1.0) for _ in range(200)])
    assert figure.low <= figure.value <= figure.high
    assert figure.q1 < figure.low
    assert figure.high < figure.q3
    assert abs(figure.value - 10.0) < 0.3
    assert figure.n == 200


def test_estimate_is_repeatable() -> None:
    values = [random.Random(5).random() for _ in range(30)]
    assert estimate(values) == estimate(values)


def test_interval_of_the_median_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = random.Random(11)
    covered = 0
    for _ in range(30):
        figure = estimate([generator.expovariate(1.0) for _ in range(30)])
        covered += figure.low <= 0.6931 <= figure.high
    assert 24 <= covered <= 30


def test_paired_ratio_cancels_noise_that_hits_both() -> None:
    generator = random.Random(7)
    noise = [generator.uniform(1.0, 10.0) for _ in range(40)]
    ratio = paired_ratio([2.0 * x for x in noise], noise)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.high - ratio.low < 1e-9


def test_paired_ratio_refuses_samples_that_are_not_pairs() -> None:
    with pytest.raises(ValueError, match="not pairs"):
        paired_ratio([1.0, 2.0], [1.0])


def _figure(low: float, value: float, high: float) -> Estimate:
    return Estimate(value=value, q1=low, q3=high, low=low, high=high, n=30)


@pytest.mark.parametrize(
    ("figure", "target", "better", "met"),
    [
        (_figure(0.80, 0.90, 0.94), 0.95, "higher", False),
        (_figure(0.80, 0.90, 0.96), 0.95, "higher", True),
        (_figure(0.96, 0.97, 0.98), 0.95, "higher", True),
        (_figure(1.06, 1.10, 1.20), 1.05, "lower", False),
        (_figure(1.04, 1.10, 1.20), 1.05, "lower", True),
        (_figure(1.04, 1.10, 1.20), None, "lower", None),
    ],
)
def test_target_is_missed_only_where_the_interval_lies_wholly_beyond_it(
    figure: Estimate, target: float | None, better: str, met: bool | None
) -> None:
    assert target_met(figure, target, better) is met


def test_target_needs_a_direction() -> None:
    with pytest.raises(ValueError, match="better"):
        target_met(_figure(1, 1, 1), 1.0, "faster")
