"""The page of a run file: well-formed, complete, and from one file."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import run_examples

from sirtaki._telemetry import page
from sirtaki._telemetry.plots import HEIGHT, WIDTH

PLOTS = [
    "Time of a step",
    "Bytes a step",
    "Bytes by codec, of a step of each stream",
    "Bandwidth of the slowest link",
    "Latency of the slowest link",
    "Drift: distance between the models at a merge",
    "Steps between merges (1: each step)",
]


@pytest.fixture(scope="module")
def full() -> str:
    return page.html(run_examples.full(seed=7))


def tree_of(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def texts(tree: ElementTree.Element, tag: str) -> list[str]:
    return ["".join(found.itertext()) for found in tree.iter(tag)]


def test_the_page_has_every_plot_and_table(full: str) -> None:
    tree = tree_of(full)
    assert texts(tree, "figcaption") == PLOTS
    assert texts(tree, "h2") == ["Codecs by layer", "Links", "Decisions of o.0", "Report", "Options"]
    assert texts(tree, "h1") == ["Sirtaki run: train <tiny>.py"]
    said = "".join(tree.itertext())
    for text in (
        "Ended by KeyboardInterrupt",
        "layer69.<weight>",
        "and 10 smaller tensors",
        "101 Mbit/s",
        "auto: a & b",
    ):
        assert text in said, text
    assert "[0m & more" in said, "control characters are replaced"
    assert "values above " in said, "the first step is cut"


def test_every_point_lies_in_its_plot(full: str) -> None:
    lines = list(tree_of(full).iter("polyline"))
    assert len(lines) >= len(PLOTS)
    for element in lines:
        for point in element.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


def test_the_page_takes_nothing_from_elsewhere(full: str) -> None:
    assert not re.search(r"https?:|url\(|@import|<script|<link|<img|\bsrc=|\bhref=|\bon\w+=", full)
    assert len(full) < 1_000_000


def test_a_run_without_steps_has_a_page_without_plots() -> None:
    tree = tree_of(page.html(run_examples.least()))
    assert texts(tree, "figcaption") == texts(tree, "h2") == []
    assert "1 rank on 1 host" in "".join(tree.itertext())


def test_two_optimizers_have_a_plot_each_and_streams_stand_in_for_none() -> None:
    run = run_examples.full(seed=7)
    run["optimizers"] *= 2
    assert texts(tree_of(page.html(run)), "figcaption")[:2] == [
        "Time of a step of optimizer 1 (SGD)",
        "Time of a step of optimizer 2 (SGD)",
    ]
    run["stats"]["tensors"] = {"keras": run["optimizers"][0]["layers"][:2]}
    run["optimizers"] = []
    assert "layer1.<weight>" in "".join(tree_of(page.html(run)).itertext())
