"""Plot of `churn`, from rows alone. See benchmarks/common/plots.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.plots import COLORS, panels, save
from benchmarks.results import Row

_COLORS = {
    "sirtaki": COLORS["sirtaki"],
    "sirtaki_spare": "#0b6e4f",
    "torchft_ddp": "#c8553d",
    "torchft_ddp_1s": "#e6a15c",
    "torchft_hooks": "#5b5f97",
    "torchft_hooks_1s": "#a6a8cc",
}


def churn(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots committed samples by time, a column for each kind of fault, with faults as marks on each line."""
    points = [row for row in rows if row.metric == "samples_at"]
    kinds = list(dict.fromkeys(row.params["faults"] for row in points))
    made = panels(len(kinds), 1) if kinds else None
    if made is None:
        return None
    figure, axes = made
    for axis, kind in zip(axes[0], kinds, strict=True):
        mine = [row for row in points if row.params["faults"] == kind]
        for system in dict.fromkeys(row.params["system"] for row in mine):
            line = [row for row in mine if row.params["system"] == system]
            times, values = [row.params["second"] for row in line], [row.value for row in line]
            axis.plot(times, values, label=system, color=_COLORS.get(system))
            faults = [
                row.value
                for row in rows
                if row.metric == "fault_at" and (row.params["faults"], row.params["system"]) == (kind, system)
            ]
            heights = [_height(at, times, values) for at in faults]
            axis.plot(faults, heights, linestyle="", marker="x", markersize=4, color="black")
            if system == mine[0].params["system"]:
                axis.plot(times, [row.bound for row in line], linestyle=":", color="#888888", label="without faults")
        axis.set(title=f"{kind} faults (crosses)", xlabel="seconds", ylabel="committed samples")
        axis.legend(fontsize=7)
    return save(figure, path)


def _height(at: float, times: Sequence[float], values: Sequence[float]) -> float:
    later = next((i for i, time in enumerate(times) if time >= at), len(times) - 1)
    if later == 0:
        return values[0]
    share = min(1.0, (at - times[later - 1]) / (times[later] - times[later - 1]))
    return values[later - 1] + share * (values[later] - values[later - 1])
