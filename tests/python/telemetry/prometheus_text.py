"""Reads the text format of Prometheus strictly, for tests."""

from __future__ import annotations

import re

SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Samples = dict[tuple[tuple[str, str], ...], float]


def parsed(text: str) -> dict[str, Samples]:
    """Returns values by labels by name; fails where the text breaks the format."""
    found: dict[str, Samples] = {}
    current = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ")[2]
            assert current not in found, "a family is one group"
            found[current] = {}
        elif line.startswith("# TYPE "):
            name, kind = line.split(" ")[2:]
            assert name == current
            assert kind in ("counter", "gauge")
            assert (kind == "counter") == name.endswith("_total")
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == current
            labels = tuple(sorted(LABEL.findall(match[2])))
            assert labels not in found[current], "a sample occurs once"
            found[current][labels] = float(match[3])
    return found


def of(rank: int, host: str = "a") -> tuple[tuple[str, str], ...]:
    """Returns the labels of a rank."""
    return ("host", host), ("rank", str(rank))
