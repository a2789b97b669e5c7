"""Plots as SVG: numbers, ticks and lines."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from sirtaki._telemetry.plots import BITS, BYTES, SECONDS, Line, line_plot, number, quantity, ticks


def tree_of(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def test_numbers_are_short() -> None:
    shown = {
        0.0: "0",
        1.0: "1",
        12.34: "12.3",
        1234.5: "1,234",
        0.000123: "0.000123",
        2e-7: "2e-07",
        0.00125: "0.00125",
        99.96: "100",
        -2.5: "-2.5",
    }
    assert {value: number(value) for value in shown} == shown
    assert quantity(0.0125, SECONDS) == "12.5 ms"
    assert quantity(2.5e-7, SECONDS) == "0.25 µs"
    assert quantity(12.5e6, BITS) == "100 Mbit/s"
    assert quantity(0, BYTES) == "0 B"
    assert quantity(None, BYTES) == "–"


@pytest.mark.parametrize("most", [0.0, 1e-9, 0.3, 1.0, 7.0, 10.0, 99.9, 1e12])
def test_ticks_are_round_and_cover_the_values(most: float) -> None:
    found = ticks(most)
    assert found[0] == 0
    assert found[-1] >= most * (1 - 1e-9)
    assert 2 <= len(found) <= 7
    assert f"{found[1]:e}"[:3] in ("1.0", "2.0", "2.5", "5.0")


def test_lines_have_gaps_and_single_points() -> None:
    text = line_plot("a < b", [1, 2, 3, 4], [Line("x", [None, 1.0, None, 2.0], 0, filled=True)], SECONDS, "step")
    tree = tree_of(text)
    assert len(list(tree.iter("polyline"))) == len(list(tree.iter("circle"))) == 2
    assert line_plot("nothing", [1], [Line("x", [None], 0)], SECONDS, "step") == ""
    assert line_plot("nothing", [], [Line("x", [], 0)], SECONDS, "step") == ""
    assert tree_of(line_plot("one", [5], [Line("x", [0.0], 0)], SECONDS, "step")) is not None
