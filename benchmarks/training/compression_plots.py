"""Plots of the benchmarks about compression, from rows alone. See benchmarks/common/plots.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.plots import canvas, error_bar, panels, save
from benchmarks.results import Row

DENSE, OURS, CONTROL = "#c8553d", "#0b6e4f", "#b0b0b0"


def _by(rows: Sequence[Row], name: str) -> dict[Any, list[Row]]:
    """Groups the rows by the parameter `name`, in the order in which its values first occur."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row.params[name], []).append(row)
    return found


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


def time_to_quality(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots seconds to the target loss of every system; a column for each link, a line for each task."""
    times = [row for row in rows if row.metric == "seconds_to_target"]
    nets, tasks = list(_by(times, "rate_mbit")), list(_by(times, "task"))
    made = panels(max(1, len(nets)), max(1, len(tasks)))
    if made is None:
        return None
    figure, axes = made
    for line, task in enumerate(tasks):
        for column, net in enumerate(nets):
            axis = axes[line][column]
            mine = [row for row in times if (row.params["rate_mbit"], row.params["task"]) == (net, task)]
            for place, row in enumerate(mine):
                theirs = row.params["system"].startswith(("ddp", "powersgd"))
                axis.barh(place, row.value, xerr=error_bar(row), color=DENSE if theirs else OURS, capsize=2)
            axis.set_yticks(range(len(mine)), [row.params["system"] for row in mine], fontsize=7)
            axis.invert_yaxis()
            axis.set(title=f"{task}, {net:g} Mbit/s", xlabel="seconds to the target loss")
    return save(figure, path)


def never_lose(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots step time of every setting over that of processes that send nothing; a column for each task."""
    columns = _by([row for row in rows if row.metric == "step_seconds"], "task")
    made = panels(max(1, len(columns)), 1)
    if made is None:
        return None
    figure, axes = made
    for axis, (task, mine) in zip(axes[0], columns.items(), strict=False):
        links = list(_by(mine, "rate_mbit"))
        settings = _by(mine, "setting")
        for place, (setting, ours) in enumerate(settings.items()):
            color = {"none": DENSE, "auto": OURS}.get(setting, CONTROL)
            at = [links.index(row.params["rate_mbit"]) + 0.8 * place / len(settings) for row in ours]
            axis.bar(at, [row.value / (row.bound or 1.0) for row in ours], 0.7 / len(settings), color=color)
        names = ["loopback" if link is None else f"{link:g} Mbit/s" for link in links]
        axis.set_xticks([index + 0.4 for index in range(len(links))], names, fontsize=7)
        axis.set(title=f"{task}: {', '.join(settings)}", yscale="log", ylabel="step over one that sends nothing")
        axis.title.set_fontsize(6)
    return save(figure, path)
