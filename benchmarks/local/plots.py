"""Plots of the benchmarks of local updates, from rows alone. See benchmarks/common/plots.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.plots import error_bar, panels, save
from benchmarks.results import Row

COLORS = {"synchronous": "#5b5f97", "corrected": "#0b6e4f", "overwrite": "#c8553d"}


def local_merges(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots training loss and drift, with and without correction."""
    curves = [("loss_at_step", "training loss", "linear"), ("drift_at_step", "drift", "log")]
    drawn = [curve for curve in curves if any(row.metric == curve[0] for row in rows)]
    made = panels(max(1, len(drawn)), 1)
    if made is None:
        return None
    figure, axes = made
    for axis, (metric, label, scale) in zip(axes[0], drawn, strict=False):
        _curves(axis, [row for row in rows if row.metric == metric])
        axis.set(xlabel="step", ylabel=label, yscale=scale)
        axis.legend(fontsize=7)
    return save(figure, path)


def local_updates(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots the seconds to the target on a slow link, by net."""
    tasks = list(dict.fromkeys(row.params["task"] for row in rows if row.metric == "seconds_to_target"))
    made = panels(max(1, len(tasks)), 1)
    if made is None:
        return None
    figure, axes = made
    for axis, task in zip(axes[0], tasks, strict=False):
        mine = [row for row in rows if row.metric == "seconds_to_target" and row.params["task"] == task]
        for place, row in enumerate(mine):
            color = COLORS["corrected"] if row.params["method"] in ("auto", "both") else "#b0b0b0"
            axis.barh(place, row.value, xerr=error_bar(row), color=color, capsize=2)
        axis.set_yticks(range(len(mine)), [row.params["method"] for row in mine], fontsize=8)
        axis.invert_yaxis()
        axis.set(
            title=f"{task}, {mine[0].params['rate_mbit']:g} Mbit/s", xlabel="seconds to the loss of dense training"
        )
    return save(figure, path)


def _curves(axis: Any, rows: Sequence[Row]) -> None:
    by_merge: dict[str, list[Row]] = {}
    for row in rows:
        name = "synchronous" if row.params["interval"] == 1 else row.params["merge"]
        by_merge.setdefault(name, []).append(row)
    for name, mine in by_merge.items():
        steps = [row.params["step"] for row in mine]
        first = mine[0].params
        label = name if name == "synchronous" else f"{name}, H = {first['interval']}, D = {first['delay']}"
        axis.plot(steps, [row.value for row in mine], color=COLORS[name], label=label)
        low, high = [row.spread["low"] for row in mine], [row.spread["high"] for row in mine]
        axis.fill_between(steps, low, high, color=COLORS[name], alpha=0.2, linewidth=0)
