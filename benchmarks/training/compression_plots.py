"""Plots of the benchmarks about compression, from rows alone. See benchmarks/common/plots.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.plots import canvas, error_bar, panels, save
from benchmarks.results import Row

DENSE, OURS, CONTROL = "#c8553d", "#0b6e4f", "#b0b0b0"


def compressed_allreduce(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots seconds of each method beside those of wire and codec alone; a column for each placement of ranks."""
    columns: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        if row.metric == "step_seconds":
            columns.setdefault((row.params["ranks"], row.params.get("ranks_per_host", 1)), []).append(row)
    made = panels(max(1, len(columns)), 1)
    if made is None:
        return None
    figure, axes = made
    codec = {(row.params["method"], row.params["ranks"]): row.value for row in rows if row.metric == "codec_seconds"}
    for axis, ((size, per_host), mine) in zip(axes[0], columns.items(), strict=False):
        for place, row in enumerate(mine):
            method = row.params["method"]
            axis.barh(place, row.value, xerr=error_bar(row), color=DENSE if method == "gloo" else OURS, capsize=2)
            axis.plot([row.bound], [place], marker="|", markersize=14, color="black")
            if (method, size) in codec:
                axis.plot([codec[method, size]], [place], marker="x", markersize=5, color="black")
        axis.set_yticks(range(len(mine)), [row.params["method"] for row in mine], fontsize=7)
        axis.invert_yaxis()
        placed = f", {per_host} on a host" if per_host > 1 else ""
        axis.set(title=f"{size} ranks{placed}  ( | wire alone, x codec alone)", xscale="log", xlabel="seconds")
    return save(figure, path)


def methods(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots training loss over bytes of a step, for every method and control; whiskers are the interval over seeds."""
    made = canvas(6.4, 4.4)
    if made is None:
        return None
    figure, axis = made
    sent = {row.params["method"]: row for row in rows if row.metric == "sent_bytes"}
    for row in rows:
        if row.metric != "loss" or row.params["method"] not in sent:
            continue
        method, kind = row.params["method"], row.params["kind"]
        color = {"dense": DENSE, "control": CONTROL}.get(kind, OURS)
        x = sent[method].value / 1e3
        axis.errorbar([x], [row.value], yerr=error_bar(row), color=color, marker="o", capsize=2)
        axis.annotate(method, (x, row.value), textcoords="offset points", xytext=(5, 4), fontsize=7)
    axis.set(xscale="log", xlabel="kB that a rank sends in a step", ylabel="training loss of the last steps")
    return save(figure, path)


def importance(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots seconds to the target of the rates that reach it, on a link that is slow for a while."""
    made = canvas(6.4, 3.2)
    if made is None:
        return None
    figure, axis = made
    mine = [row for row in rows if row.metric == "seconds_to_target"]
    for place, row in enumerate(mine):
        color = {"dense": DENSE, "method": OURS}.get(row.params["kind"], CONTROL)
        axis.barh(place, row.value, xerr=error_bar(row), color=color, capsize=2)
    axis.set_yticks(range(len(mine)), [row.params["method"] for row in mine])
    axis.invert_yaxis()
    axis.set(title="100, 20 and 100 Mbit/s", xlabel="seconds to the target loss")
    return save(figure, path)


def ladder(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots the loss of every level above dense training over its bytes; a column for each net and optimizer."""

    def training(row: Row) -> str:
        batch = row.params.get("batch")
        return f"{row.params['task']}, {row.params['optimizer']}" + (f", batch {batch}" if batch else "")

    columns: dict[str, list[Row]] = {}
    for row in rows:
        if row.metric == "loss_cost":
            columns.setdefault(training(row), []).append(row)
    made = panels(max(1, len(columns)), 1)
    if made is None:
        return None
    sent = {(training(row), row.params["level"]): row.value for row in rows if row.metric == "sent_share"}
    figure, axes = made
    for axis, (title, mine) in zip(axes[0], columns.items(), strict=False):
        for row in mine:
            x = sent[title, row.params["level"]]
            axis.errorbar([x], [row.value], yerr=error_bar(row), color=OURS, marker="o", markersize=3, capsize=2)
            axis.annotate(row.params["level"], (x, row.value), textcoords="offset points", xytext=(4, 3), fontsize=6)
        axis.axhline(mine[0].target or 0.0, color=DENSE, linewidth=0.8)
        axis.set(title=title, xscale="log", xlabel="bytes over float32", ylabel="nats above dense")
        axis.set_yscale("symlog", linthresh=0.05)
    return save(figure, path)
