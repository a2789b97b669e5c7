"""Plots of `frontier`, from rows alone: one file for each training. See benchmarks/common/plots.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.plots import net_of, panels, save
from benchmarks.pareto.figures import CURVE
from benchmarks.results import Row

#: Color by the beginning of the name of a method; the first that fits.
_COLORS = {"ddp": "#c8553d", "powersgd": "#e6a15c", "local_sgd": "#8d6a9f", "diloco": "#5b5f97", "none": "#888888"}
_OURS = {"compression_auto": "#7fb69f", "local_auto": "#58a618", "both_auto": "#0b6e4f"}
_STYLES = ("-", "--", "-.", ":")


def frontier(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots loss against seconds and bytes, a line for each method and a column for each link.

    A training has a file of its own, named after `path`; returns the last one.
    """
    curves = [row for row in rows if row.metric == CURVE]
    drawn = None
    for training in dict.fromkeys(_training(row) for row in curves):
        mine = [row for row in curves if _training(row) == training]
        drawn = _draw(path.with_name(f"{path.stem}_{training}{path.suffix}"), training, mine)
    return drawn


def _training(row: Row) -> str:
    return f"{row.params['task']}_{row.params['optimizer']}_{row.params['steps']}"


def _draw(path: Path, training: str, rows: Sequence[Row]) -> Path | None:
    links = list(dict.fromkeys(net_of(row) for row in rows))
    made = panels(len(links), 2)
    if made is None:
        return None
    figure, axes = made
    for column, link in enumerate(links):
        mine = [row for row in rows if net_of(row) == link]
        _lines(axes[0][column], mine, "seconds", "seconds from the first step")
        _lines(axes[1][column], mine, "sent", "bytes that a rank has sent")
        axes[0][column].set_title(f"{training.replace('_', ', ')} steps, {link}", fontsize=8)
        axes[0][column].legend(fontsize=5)
    return save(figure, path)


def _lines(axis: Any, rows: Sequence[Row], key: str, label: str) -> None:
    used: dict[str, int] = {}
    goal = None
    for row in rows:
        if row.params[key] is None:
            continue
        goal, method = row.params["goal"], row.params["method"]
        color = _color(method)
        style = _STYLES[used.get(color, 0) % len(_STYLES)]
        used[color] = used.get(color, 0) + 1
        width = 1.8 if method in _OURS else 1.0
        axis.plot(row.params[key], row.params["losses"], style, color=color, linewidth=width, label=method)
    if goal is not None:
        axis.axhline(goal, color="black", linewidth=0.6)
        axis.set(xscale="log")
    axis.set(xlabel=label, ylabel="training loss")


def _color(method: str) -> str:
    known = (color for name, color in _COLORS.items() if method.startswith(name))
    return _OURS.get(method) or next(known, "#b5c99a")
