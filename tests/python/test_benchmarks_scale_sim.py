"""What benchmarks/scale_sim.py makes of the simulator's figures."""

from __future__ import annotations

from typing import Any

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


def test_heartbeats_are_rates() -> None:
    rows = by_metric(rows_of([sample("heartbeats", 64, 0, hub_membership=7680, hub_busy=0.6)]))
    assert rows["membership_rate"].value == 128
    assert abs(rows["hub_load"].value - 0.01) < 1e-9


def test_growth_of_the_tree_has_the_logarithm_as_target() -> None:
    samples = {
        ("first_use_name", 64, 0): [sample("first_use_name", 64, 0, hub_received=64, hub_sent=64)],
        ("first_use_name", 1024, 0): [sample("first_use_name", 1024, 0, hub_received=1024, hub_sent=1024)],
        ("first_use_name", 64, 32): [sample("first_use_name", 64, 32, rank_messages=64)],
        ("first_use_name", 1024, 32): [sample("first_use_name", 1024, 32, rank_messages=66)],
        ("steady_state", 64, 32): [sample("steady_state", 64, 32)],
        ("steady_state", 1024, 32): [sample("steady_state", 1024, 32)],
    }
    rows = {row.params["topology"]: row for row in growth_rows(samples)}
    assert rows["flat"].value == 16
    assert rows["flat"].met is None
    assert rows["tree"].met is True
