"""Rows that benchmarks/kernels.py derives from the output of its program."""

from __future__ import annotations

from typing import Any

from benchmarks.kernels import params_of, rates_of, rows_of
from benchmarks.results import row_problems


def entry(name: str, gigabytes: float, label: str = "") -> dict[str, Any]:
    return {"name": f"{name}/real_time", "bytes_per_second": gigabytes * 1e9, "label": label}


def test_a_round_gives_rates_by_name_and_the_instruction_set() -> None:
    content = {"benchmarks": [entry("twobit_encode", 8.0), entry("add_pass", 10.0, "AVX2")]}
    assert rates_of(content) == ("AVX2", {"twobit_encode": 8e9, "add_pass": 10e9})


def test_names_carry_numbers() -> None:
    assert params_of("group_topk_encode/512/5", "AVX2") == {
        "kernel": "group_topk_encode",
        "group": 512,
        "keep": 5,
        "isa": "AVX2",
    }


def test_ratios_are_judged_against_the_pass_and_nth_element() -> None:
    samples = {
        "add_pass": [10e9] * 6,
        "twobit_encode": [8e9] * 6,
        "group_topk_encode/512/5": [6e9] * 6,
        "group_topk_encode/256/4": [6e9] * 6,
        "nth_element/512/5": [0.6e9] * 6,
    }
    rows = rows_of("AVX2", samples)
    assert all(row_problems(row.__dict__) == [] for row in rows)
    found = {(row.metric, row.params["kernel"], row.params.get("group")): row for row in rows}
    assert found["rate", "add_pass", None].value == 10.0
    assert found["over_pass", "twobit_encode", None].met is False
    assert found["over_pass", "group_topk_encode", 512].target is None
    assert found["over_nth_element", "group_topk_encode", 512].value == 10.0
    assert found["over_nth_element", "group_topk_encode", 512].met is True
    assert found["over_nth_element", "group_topk_encode", 512].bound == 10.0 / 0.6
    assert found["over_pass", "twobit_encode", None].bound == 1.0
    assert ("over_nth_element", "group_topk_encode", 256) not in found
