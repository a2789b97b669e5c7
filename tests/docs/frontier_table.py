"""Makes the table of measured trainings of docs/measured_trainings.md from benchmarks/results/frontier.json.

usage: frontier_table.py [--write]; --write refreshes the page instead of printing the table.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/measured_trainings.md"
RESULTS = ROOT / "benchmarks/results/frontier.json"
BLOCK = re.compile(r"(<!-- frontier -->\n).*?(<!-- end frontier -->)", re.DOTALL)
STEPS = 300
TRAININGS = {
    ("convnet", "sgd"): "convolution net, SGD",
    ("cnn", "sgd"): "small CNN, SGD",
    ("transformer", "sgd"): "byte transformer, SGD",
    ("transformer", "adamw"): "byte transformer, AdamW",
    ("transformer", "muon"): "byte transformer, Muon",
}
METHODS = {
    "ddp": "DDP of torch",
    "powersgd_4": "DDP with PowerSGD of rank 4",
    "diloco_tuned": "DiLoCo, outer momentum 0.5",
    "compression_auto": '`compression="auto"`',
    # benchmarks/pareto/entrants.py sets compression="none"; without a choice, synchronous steps would be compressed.
    "local_auto": '`local_updates="auto"`, dense gradients',
    "both_auto": "both",
}
HEAD = f"| training, link | {' | '.join(METHODS.values())} |\n|---{'|---' * len(METHODS)}|\n"
#: In the place of the rate of a link without a limit, behind all others.
LOOPBACK = math.inf

Training = tuple[str, str]
#: Rate in Mbit/s, and round trip in ms.
Link = tuple[float, float]
Case = tuple[Training, Link, str]


def values_of(rows: list[dict[str, Any]], metric: str) -> dict[Case, float]:
    """Returns the values of a metric by training, link and method."""
    chosen = [row for row in rows if row["metric"] == metric and row["params"]["steps"] == STEPS]
    return {(training_of(row), link_of(row), row["params"]["method"]): row["value"] for row in chosen}


def training_of(row: dict[str, Any]) -> Training:
    """Returns the net and the optimizer of a row."""
    return row["params"]["task"], row["params"]["optimizer"]


def link_of(row: dict[str, Any]) -> Link:
    """Returns the link of a row."""
    return row["params"]["rate_mbit"] or LOOPBACK, 2 * row["params"].get("delay_ms", 0)


def name_of(link: Link) -> str:
    """Returns the name of a link in the table."""
    rate, round_trip = link
    far = f" with {round_trip:g} ms" if round_trip else ""
    return "one machine" if rate == LOOPBACK else f"{rate:g} Mbit/s{far}"


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the table."""
    steps, losses, near = (values_of(rows, name) for name in ("step_seconds", "final_loss", "seconds_near_loss"))

    def cell(case: Case) -> str:
        seconds = f"{near[case]:.0f} s" if case in near else "no"
        return f"{steps[case] * 1e3:.0f} ms, {losses[case]:.2f}, {seconds}"

    lines = [
        f"| {name}, {name_of(link)} | {' | '.join(cell((training, link, key)) for key in METHODS)} |\n"
        for training, name in TRAININGS.items()
        for link in sorted({link for of, link, _ in steps if of == training})
    ]
    return HEAD + "".join(lines)


def refreshed(page: str) -> str:
    """Returns the text of the page with the table of the results."""
    made = table(json.loads(RESULTS.read_text())["rows"])
    return BLOCK.sub(lambda match: match[1] + made + match[2], page)


def main() -> int:
    """Command line."""
    page = refreshed(PAGE.read_text())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page)
    else:
        print(page, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
