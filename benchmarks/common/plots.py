"""Plots beside the result files, from rows alone: figures can be redrawn without measuring.

Does not: decide anything. Where matplotlib is missing, plots are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Row

COLORS = {
    "sirtaki": "#0b6e4f",
    "sirtaki_forward": "#58a618",
    "gloo": "#c8553d",
    "ddp": "#c8553d",
    "ddp_scaled": "#e6a15c",
    "gloo_fused": "#c8553d",
    "horovod": "#5b5f97",
    "alone": "#aaaaaa",
}


def _pyplot() -> Any | None:
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("Agg")
    # With a fixed salt the same rows give the same file.
    mpl.rcParams["svg.hashsalt"] = "benchmarks"
    mpl.rcParams["svg.fonttype"] = "none"  # text as text: small files
    from matplotlib import pyplot

    return pyplot


def _figure(columns: int, lines: int, height: float = 3.4) -> tuple[Any, Any] | None:
    pyplot = _pyplot()
    if pyplot is None:
        return None
    return pyplot.subplots(lines, columns, figsize=(4.2 * columns, height * lines), squeeze=False)


def _columns(
    path: Path,
    rows: Sequence[Row],
    read: Callable[[Row], Any],
    draw: Callable[[Any, Any, Sequence[Row]], None],
    height: float = 3.4,
) -> Path | None:
    """Writes a figure with a column for each value of `read`; calls `draw` with axis, value and rows of the column."""
    values = _unique(rows, read)
    made = _figure(max(1, len(values)), 1, height)
    if made is None:
        return None
    figure, axes = made
    for axis, value in zip(axes[0], values, strict=False):
        draw(axis, value, [row for row in rows if read(row) == value])
    return _save(figure, path)


def canvas(width: float, height: float) -> tuple[Any, Any] | None:
    """Makes a figure of one drawing, sizes in inches; returns it with its axes, or None without matplotlib."""
    pyplot = _pyplot()
    return None if pyplot is None else pyplot.subplots(figsize=(width, height))


def panels(columns: int, lines: int) -> tuple[Any, Any] | None:
    """Makes a figure of several drawings; returns it with the axes by line and column, or None without matplotlib."""
    return _figure(columns, lines)


def error_bar(row: Row) -> list[list[float]]:
    """Returns the distances from the value to the ends of its interval, in the form that matplotlib takes."""
    return [[max(0.0, row.value - row.spread["low"])], [max(0.0, row.spread["high"] - row.value)]]


def save(figure: Any, path: Path) -> Path:
    """Writes and closes a figure."""
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    from matplotlib import pyplot

    pyplot.close(figure)
    return path


def _unique(rows: Sequence[Row], read: Callable[[Row], Any]) -> list[Any]:
    return list(dict.fromkeys(read(row) for row in rows))


def net_of(row: Row) -> str:
    """Returns the name of the network of a row."""
    rate = row.params.get("rate_mbit")
    per_host = row.params.get("ranks_per_host", 1)
    shared = f", {per_host} ranks a host" if per_host > 1 else ""
    delay = row.params.get("delay_ms", 0)
    far = f", {2 * delay:g} ms there and back" if delay > 0 else ""
    return "loopback" if rate is None else f"{rate:g} Mbit/s{far}{shared}"


def _bars(rows: Sequence[Row], read: Callable[[Row], Any], step: float) -> Iterator[tuple[str, list[float], list[Row]]]:
    """Yields for each system the places of its bars and their rows.

    Each value of `read` has a group of bars, whose distance is `step`.
    """
    groups = {value: place for place, value in enumerate(_unique(rows, read))}
    for index, system in enumerate(_unique(rows, lambda row: row.params["system"])):
        mine = [row for row in rows if row.params["system"] == system]
        yield system, [groups[read(row)] + index * step for row in mine], mine


def allreduce(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots time over size, and speed-up over Gloo, a column for each network."""
    times = [row for row in rows if row.metric == "allreduce_seconds"]
    ratios = [row for row in rows if row.metric == "speedup_over_gloo"]
    nets = _unique(times, net_of)
    made = _figure(max(1, len(nets)), 2)
    if made is None:
        return None
    figure, axes = made
    marks = dict(zip(_unique(times, lambda row: row.params["ranks"]), "osd^v", strict=False))
    for column, net in enumerate(nets):
        top, below = axes[0][column], axes[1][column]
        for system in _unique(times, lambda row: row.params["system"]):
            for ranks, mark in marks.items():
                line = [r for r in times if (net_of(r), r.params["system"], r.params["ranks"]) == (net, system, ranks)]
                _line(top, line, f"{system}, {ranks} ranks", COLORS.get(system), mark)
        for ranks, mark in marks.items():
            line = [r for r in times if (net_of(r), r.params["ranks"]) == (net, ranks)]
            sizes = _unique(line, lambda row: row.params["bytes"])
            bounds = [next(r.bound for r in line if r.params["bytes"] == size) for size in sizes]
            top.plot(sizes, bounds, linestyle=":", color="#888888", label="bound" if mark == "o" else None)
            _line(
                below,
                [r for r in ratios if (net_of(r), r.params["ranks"]) == (net, ranks)],
                f"{ranks} ranks",
                None,
                mark,
            )
        top.set(title=net, xscale="log", yscale="log", ylabel="seconds")
        below.axhline(1.0, color="#888888", linewidth=0.8)
        below.set(xscale="log", xlabel="bytes", ylabel="speed-up over Gloo")
        top.legend(fontsize=6)
        if ratios:
            below.legend(fontsize=6)
    return _save(figure, path)


def _line(axis: Any, line: Sequence[Row], label: str, color: str | None, mark: str) -> None:
    if not line:
        return
    values = [row.value for row in line]
    low = [max(0.0, row.value - row.spread["low"]) for row in line]
    high = [max(0.0, row.spread["high"] - row.value) for row in line]
    axis.errorbar(
        [row.params["bytes"] for row in line],
        values,
        yerr=[low, high],
        label=label,
        color=color,
        marker=mark,
        markersize=4,
        linewidth=1,
        capsize=2,
    )


def _label(row: Row) -> str:
    p = row.params
    return f"{p['tensors']} tensors, {p['ranks']} ranks\n{net_of(row)}, {p['order']} order"


def small_tensors(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots bars of seconds a step, by configuration and system."""
    times = [row for row in rows if row.metric in ("step_seconds", "raw_seconds")]
    return _columns(path, times, lambda row: row.metric, _bars_across, 1.2 + 0.5 * len(_unique(times, _label)))


def _bars_across(axis: Any, kind: str, rows: Sequence[Row]) -> None:
    labels = _unique(rows, _label)
    for system, places, mine in _bars(rows, _label, 0.25):
        values = [row.value * 1e3 for row in mine]
        axis.barh(places, values, height=0.23, label=system, color=COLORS.get(system))
    axis.set_yticks([place + 0.25 for place in range(len(labels))], labels, fontsize=6)
    axis.set(title="paced training step" if kind == "step_seconds" else "raw", xlabel="ms")
    axis.invert_yaxis()
    axis.legend(fontsize=7)


def one_host(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots bars of seconds a step of every system, a column for each net."""
    times = [row for row in rows if row.metric == "step_seconds"]
    return _columns(path, times, lambda row: row.params["task"], _bars_by_system)


def _bars_by_system(axis: Any, task: str, rows: Sequence[Row]) -> None:
    for place, row in enumerate(rows):
        color = COLORS.get(row.params["system"])
        bars = [[1e3 * side for side in sides] for sides in error_bar(row)]
        axis.barh(place, row.value * 1e3, xerr=bars, color=color, capsize=2)
    axis.set_yticks(range(len(rows)), [row.params["system"] for row in rows], fontsize=8)
    axis.set(title=f"{task}, {rows[0].params['ranks']} ranks on one host", xlabel="ms a step")
    axis.invert_yaxis()


def overlap(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots step time over its bound with per-layer waiting: a group of bars for each model and ratio."""
    times = [row for row in rows if row.metric == "step_seconds"]
    return _columns(path, times, lambda row: row.params["model"], _bars_over_bounds)


def _bars_over_bounds(axis: Any, model: str, rows: Sequence[Row]) -> None:
    ratios = _unique(rows, lambda row: row.params["ratio"])
    middle = 0.15 * (len(_unique(rows, lambda row: row.params["system"])) - 1) / 2
    for index, (system, places, mine) in enumerate(_bars(rows, lambda row: row.params["ratio"], 0.15)):
        axis.bar(places, [row.value * 1e3 for row in mine], width=0.14, label=system, color=COLORS.get(system))
        bounds = [(row.bound or 0.0) * 1e3 for row in mine]
        left, right = [place - 0.07 for place in places], [place + 0.07 for place in places]
        axis.hlines(bounds, left, right, color="black", linewidth=1.2, label="bound" if index == 0 else None)
    axis.set_xticks([place + middle for place in range(len(ratios))], [f"{ratio:g}" for ratio in ratios])
    axis.set(title=model, xlabel="communication / compute", ylabel="ms a step")
    axis.legend(fontsize=6)


def urgent(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots seconds of the urgent operation by mode, for each number of ranks, with the bound of the priority mode."""
    times = [row for row in rows if row.metric == "urgent_seconds"]
    return _columns(path, times, lambda row: row.params["ranks"], _bars_by_mode)


def _bars_by_mode(axis: Any, ranks: int, rows: Sequence[Row]) -> None:
    ours, theirs = COLORS["sirtaki"], COLORS["gloo"]
    colors = {"priority": ours, "in_order": "#7fb69f", "idle": "#b9d8cb", "gloo": theirs, "gloo_idle": "#e8bdb0"}
    for row in rows:
        mode = row.params["mode"]
        error = [[row.value - row.spread["low"]], [row.spread["high"] - row.value]]
        axis.bar(mode, row.value, yerr=error, color=colors.get(mode), capsize=3)
        if row.bound is not None:
            axis.axhline(row.bound, color="#888888", linestyle=":", label="bound of priority")
    axis.set(title=f"{ranks} ranks, {net_of(rows[0])}", yscale="log", ylabel="seconds")
    axis.legend(fontsize=6)


def scale_sim(path: Path, rows: Sequence[Row]) -> Path | None:
    """Plots control messages at the busiest process, and virtual seconds, over ranks; a column for each scenario."""
    metrics = {"control_messages": "messages at the busiest process", "virtual_seconds": "virtual seconds"}
    scenarios = _unique([row for row in rows if row.metric == "virtual_seconds"], lambda row: row.params["scenario"])
    made = _figure(max(1, len(scenarios)), 2)
    if made is None:
        return None
    figure, axes = made
    for column, scenario in enumerate(scenarios):
        for line, (metric, label) in enumerate(metrics.items()):
            axis = axes[line][column]
            for topology, color in (("flat", COLORS["gloo"]), ("tree", COLORS["sirtaki"])):
                mine = [r for r in rows if r.metric == metric and r.params["scenario"] == scenario]
                mine = [r for r in mine if r.params["topology"] == topology]
                ranks, values = [r.params["ranks"] for r in mine], [r.value for r in mine]
                axis.plot(ranks, values, label=topology, color=color, marker="o", markersize=4, linewidth=1)
            axis.set(ylabel=label if column == 0 else None, xlabel="ranks" if line else None)
            axis.set_xscale("log", base=2)
            axis.set_yscale("symlog" if metric == "control_messages" else "log")
            if line == 0:
                axis.set_title(scenario)
            axis.legend(fontsize=7)
    return _save(figure, path)
