"""Writes tables from result files into Markdown pages: `python -m benchmarks.tables [--check] PAGE.md...`.

A page holds `<!-- results NAME METRIC[,METRIC...] -->` and, below it, `<!-- end results -->`; the lines between are
replaced. If NAME.json does not exist yet, the table says so. With --check nothing is written, and a page that is out of
date is an error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, format_figure

_BLOCK = re.compile(r"(<!-- results (\S+) (\S+) -->\n)(.*?)(<!-- end results -->)", re.DOTALL)


def markdown(content: Mapping[str, Any], metrics: Sequence[str]) -> str:
    """Returns the rows of some metrics as a Markdown table, with their source."""
    lines = []
    for metric in metrics:
        rows = [row for row in content["rows"] if row["metric"] == metric]
        if rows:
            lines += [*_table(metric, rows), ""]
    source = f"`{content['command']}`, {content['date'][:10]}, commit {_short(content['commit'])}"
    source += "".join(f", {name} {_parameter(value)}" for name, value in _common(content["rows"]).items())
    machine = content["machine"]
    return "\n".join([*lines, f"Measured by {source}, on {machine['cores']} cores ({machine['cpu']}).", ""])


def _short(commit: str) -> str:
    name, plus, changes = commit.partition("+")
    return name[:12] + plus + changes


def _common(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the parameters that are the same in all rows of a file; tables leave them out."""
    first = rows[0]["params"] if rows else {}
    return {
        name: value
        for name, value in first.items()
        if value is not None and all(row["params"].get(name) == value for row in rows)
    }


def _table(metric: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row["params"]))
    names = [name for name in names if len({str(row["params"].get(name)) for row in rows}) > 1]
    head = [*names, metric, "95 % interval", "baseline", "bound", "target", "met"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        unit, spread, baseline = row["unit"], row["spread"], row["baseline"]
        cells = [_parameter(row["params"].get(name)) for name in names]
        cells += [
            format_figure(row["value"], unit),
            f"{format_figure(spread['low'], unit)} to {format_figure(spread['high'], unit)}",
            "" if baseline is None else f"{baseline['name']} {format_figure(baseline['value'], unit)}",
            "" if row["bound"] is None else format_figure(row["bound"], unit),
            "" if row["target"] is None else format_figure(row["target"], unit),
            {None: "", True: "yes", False: "**no**"}[row["met"]],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _parameter(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def fill(page: str, folder: Path) -> str:
    """Returns the page with its tables rewritten from the result files in `folder`."""

    def table(match: re.Match[str]) -> str:
        path = folder / f"{match[2]}.json"
        text = "(not measured yet)\n"
        if path.is_file():
            text = markdown(json.loads(path.read_text()), match[3].split(","))
        return f"{match[1]}{text}{match[5]}"

    return _BLOCK.sub(table, page)


def main() -> int:
    """Rewrites or checks the pages of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    stale = 0
    for path in arguments.pages:
        page = path.read_text()
        filled = fill(page, RESULTS)
        if filled == page:
            continue
        if arguments.check:
            print(f"{path}: a table differs from its result file; run python -m benchmarks.tables {path}")
            stale = 1
        else:
            path.write_text(filled)
    return stale


if __name__ == "__main__":
    sys.exit(main())
