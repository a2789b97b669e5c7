"""Rows that benchmarks/scale_sim.py derives from the figures of the simulator."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.results import Row, row_problems
from benchmarks.scale_sim import busiest, growth_rows, rows_of


def sample(scenario: str, ranks: int, fanout: int, **figures: float) -> dict[str, Any]:
    known = "hub_received hub_sent hub_membership hub_busy rank_messages rank_messages_median slowest median"
    return {"scenario": scenario, "ranks": ranks, "fanout": fanout, **dict.fromkeys(known.split(), 0.0), **figures}


def by_metric(rows: list[Row]) -> dict[str, Row]:
    for row in rows:
        assert row_problems(row.__dict__) == []
    return {row.metric: row for row in rows}


def test_the_busiest_process_is_the_hub_or_a_rank_and_membership_does_not_count() -> None:
    assert busiest(sample("late_rank", 64, 0, hub_received=90, hub_sent=40, hub_membership=30, rank_messages=7)) == 100
    assert busiest(sample("late_rank", 64, 32, hub_received=2, hub_sent=2, rank_messages=66)) == 66


def test_steady_state_is_judged_per_step_against_no_message() -> None:
    quiet = by_metric(rows_of([sample("steady_state", 64, 0, slowest=5.0)]))
    assert quiet["control_messages"].met is True
    assert quiet["virtual_seconds"].value == 0.5
    loud = by_metric(rows_of([sample("steady_state", 64, 0, hub_received=640)]))
    assert loud["control_messages"].value == 64
    assert loud["control_messages"].met is False


@pytest.mark.parametrize(("ranks", "used"), [(16, "flat"), (32, "flat"), (33, "tree"), (1024, "tree")])
def test_real_jobs_use_the_tree_when_a_relay_cannot_serve_all_ranks(ranks: int, used: str) -> None:
    for fanout, topology in ((0, "flat"), (32, "tree")):
        row = rows_of([sample("late_rank", ranks, fanout)])[0]
        assert row.params["topology"] == topology
        assert row.params["real_jobs"] == ("yes" if topology == used else "no")


def test_heartbeats_are_rates() -> None:
    rows = by_metric(rows_of([sample("heartbeats", 64, 0, hub_membership=7680, hub_busy=0.6)]))
    assert rows["membership_rate"].value == 128
    assert abs(rows["hub_load"].value - 0.01) < 1e-9


def growth(scenario: str, metric: str, **figures: tuple[float, float]) -> dict[str, Row]:
    samples = {}
    for fanout in (0, 32):
        for place, ranks in enumerate((64, 1024)):
            here = {name: value[place] for name, value in figures.items()}
            samples[scenario, ranks, fanout] = [sample(scenario, ranks, fanout, slowest=0.1 * (1 + place), **here)]
    return {row.params["topology"]: row for row in growth_rows(samples) if row.metric == metric}


def test_growth_of_the_tree_has_the_logarithm_as_target_and_says_what_real_jobs_use() -> None:
    rows = growth("first_use_name", "message_growth", hub_received=(64, 1024), hub_sent=(64, 1024))
    assert rows["flat"].value == rows["tree"].value == 16
    assert (rows["flat"].met, rows["tree"].met) == (None, False)
    assert (rows["flat"].params["real_jobs"], rows["tree"].params["real_jobs"]) == ("no", "yes")
    assert growth("late_rank", "message_growth", rank_messages=(64, 66))["tree"].met is True


@pytest.mark.parametrize("scenario", ["steady_state", "plan_change"])
def test_no_messages_do_not_grow(scenario: str) -> None:
    rows = growth(scenario, "message_growth")
    assert (rows["flat"].value, rows["tree"].value) == (1, 1)
    assert rows["tree"].met is True
    assert growth(scenario, "message_growth", rank_messages=(0, 20))["tree"].met is False


def test_news_of_a_death_count_though_they_are_of_membership() -> None:
    rows = growth("dead_rank", "message_growth", hub_sent=(63, 1023), hub_membership=(63, 1023))
    assert rows["tree"].value == pytest.approx(1023 / 63)
    assert rows["tree"].met is False


def test_virtual_time_grows_too() -> None:
    rows = growth("dead_rank", "time_growth")
    assert (rows["flat"].value, rows["flat"].met, rows["tree"].met) == (2, None, False)
    assert growth("end", "time_growth") == {}
