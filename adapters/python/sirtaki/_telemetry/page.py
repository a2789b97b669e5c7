"""The page of a run file: one HTML file with plots, without scripts and without anything from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from sirtaki._telemetry.page_style import PAGE, STYLE
from sirtaki._telemetry.plots import BITS, BYTES, COLORS, PLAIN, SECONDS, Line, bar, line_plot, quantity

#: Rows of the tables of tensors and of peers; further ones are counted.
_MAX_ROWS = 60
#: Characters that neither HTML nor XML may contain.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
Run = dict[str, Any]


def html(run: Run) -> str:
    """Returns the page for the contents of a run file. It is well-formed XML, too."""
    program = run["program"] or "a program"
    text = PAGE.substitute(
        title=escape(f"Sirtaki run: {program}"),
        style=STYLE,
        header=_header(run),
        tiles="".join(f'<div class="tile"><span>{escape(n)}</span><b>{escape(v)}</b></div>' for n, v in _tiles(run)),
        plots="\n".join(plot for plot in _plots(run) if plot),
        sections="\n".join(
            f"<section><h2>{escape(title)}</h2>{body}</section>" for title, body in _sections(run) if body
        ),
    )
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _header(run: Run) -> str:
    hosts = len({member["host_id"] for member in run["members"]})
    size = run["metrics"]["size"]
    ranks = f"{size} rank{'s' if size > 1 else ''} on {hosts} host{'s' if hosts > 1 else ''}"
    text = (
        f'<div class="sub">{escape(run["began"])} to {escape(run["ended"])} · {ranks} · Sirtaki {run["sirtaki"]}</div>'
    )
    return text + (f'<p class="bad">Ended by {escape(run["ended_by"])}</p>' if run["ended_by"] else "")


def _tiles(run: Run) -> list[tuple[str, str]]:
    found = run["metrics"]
    tiles = [("steps", f"{found['steps']:,}")]
    if "step_seconds" in found:
        tiles.append(("time of a step, mean", quantity(found["step_seconds"], SECONDS)))
    if "exposed_share" in found:
        tiles.append(("exposed communication", f"{found['exposed_share']:.1%}"))
    tiles.append(("gradients", quantity(found["gradient_bytes"], BYTES)))
    if found["wire_bytes"] > 0:
        ratio = found["gradient_bytes"] / found["wire_bytes"]
        tiles += [("sent as", quantity(found["wire_bytes"], BYTES)), ("compression", f"{ratio:.3g}×")]
    if "link_bytes_per_second" in found:
        tiles.append(("slowest link, measured", quantity(found["link_bytes_per_second"], BITS)))
    if "link_latency_seconds" in found:
        tiles.append(("its latency", quantity(found["link_latency_seconds"], SECONDS)))
    if "local.interval" in found:
        pace = f"{found['local.interval']} steps" if found["local.mode"] == "local" else "each step"
        tiles.append(("models merged after", pace))
    return tiles


def _plots(run: Run) -> Iterable[str]:
    several = len(run["optimizers"]) > 1
    for number, optimizer in enumerate(run["optimizers"], 1):
        yield _step_plot(optimizer, f" of optimizer {number} ({optimizer['name']})" if several else "")
    rows = run["readings"]
    yield _byte_plot(rows)
    yield _codec_plot(rows)
    seconds = [row["seconds"] for row in rows]
    bandwidths = [row["link_bytes_per_second"] for row in rows]
    yield line_plot("Bandwidth of the slowest link", seconds, [Line("measured", bandwidths, 0)], BITS, "seconds")
    latencies = [row["link_latency_seconds"] for row in rows]
    yield line_plot("Latency of the slowest link", seconds, [Line("measured", latencies, 0)], SECONDS, "seconds")
    local = [row.get("local") or {} for row in rows]
    drift = [Line("relative distance", [row.get("divergence") for row in local], 4)]
    yield line_plot("Drift: distance between the models at a merge", seconds, drift, PLAIN, "seconds")
    pace = [row.get("interval") if row.get("mode") == "local" else 1 if row else None for row in local]
    yield line_plot("Steps between merges (1: each step)", seconds, [Line("interval", pace, 4)], PLAIN, "seconds")


def _step_plot(optimizer: dict[str, Any], of: str) -> str:
    points = optimizer["samples"]
    means = Line("step, mean", [p["seconds"] / p["steps"] for p in points], 0)
    exposed = Line("exposed communication", [p["exposed_seconds"] / p["steps"] for p in points], 1, filled=True)
    lines = [means, exposed]
    if any(point["steps"] > 1 for point in points):
        lines.append(Line("step, longest", [p["longest_seconds"] for p in points], 0, faint=True))
    return line_plot(f"Time of a step{of}", [p["step"] for p in points], lines, SECONDS, "step")


def _byte_plot(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the plot of bytes a step, from the differences between neighbouring readings."""
    names = {"gradient_bytes": "gradients", "wire_bytes": "after compression", "sent_bytes": "sent to other ranks"}
    pairs = [(a, b) for a, b in pairwise(rows) if b["steps"] > a["steps"]]
    lines = [
        Line(text, [(b[name] - a[name]) / (b["steps"] - a["steps"]) for a, b in pairs], color)
        for color, (name, text) in enumerate(names.items())
    ]
    return line_plot("Bytes a step", [b["steps"] for _, b in pairs], lines, BYTES, "step")


def _codec_plot(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        Line(codec, [row["codecs"].get(codec) for row in rows], color % COLORS)
        for codec, color in _codec_colors(rows).items()
    ]
    seconds = [row["seconds"] for row in rows]
    return line_plot("Bytes by codec, of a step of each stream", seconds, lines, BYTES, "seconds")


def _codec_colors(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Returns a color for each codec, by its first use, so that plots and tables agree."""
    colors: dict[str, int] = {}
    for row in rows:
        for codec in row["codecs"]:
            colors.setdefault(codec, len(colors))
    return colors


def _sections(run: Run) -> Iterable[tuple[str, str]]:
    colors = _codec_colors(run["readings"])
    for name, layers in _layers(run):
        yield f"Codecs by layer{name}", _layer_table(layers, colors)
    yield "Links", _peer_table(run)
    for stream, entries in run["stats"].get("decisions", {}).items():
        yield f"Decisions of {stream}", _decision_table(entries)
    yield "Report", f"<pre>{escape(run['report'])}</pre>" if run["report"] else ""
    yield "Options", _table(["option", "value"], [[escape(n), escape(str(v))] for n, v in run["options"].items()])


def _layers(run: Run) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    """Yields the rows of tensors of each optimizer; those of streams if no optimizer has any."""
    found = [(o["name"], o["layers"]) for o in run["optimizers"] if o["layers"]]
    found = found or [(stream, rows) for stream, rows in run["stats"]["tensors"].items() if rows]
    for name, rows in found:
        yield (f" of {name}" if len(found) > 1 else ""), rows


def _layer_table(layers: list[dict[str, Any]], colors: dict[str, int]) -> str:
    most = max(row["held_bytes"] for row in layers)
    largest = sorted(range(len(layers)), key=lambda i: layers[i]["held_bytes"], reverse=True)[:_MAX_ROWS]
    rows = []
    for row in (layers[i] for i in sorted(largest)):
        color = colors.get(row["codec"], len(colors)) % COLORS
        codec = f'<span class="key"><span class="swatch b{color}"></span>{escape(row["codec"])}</span>'
        sizes = [quantity(row["held_bytes"], BYTES), quantity(row["wire_bytes"], BYTES), f"{row['ratio']:.3g}×"]
        name = f'<span title="{escape(row["name"], quote=True)}">{escape(row["name"])}</span>'
        sent = bar(row["wire_bytes"], most, color, row["held_bytes"])
        rows.append([name, codec, *sizes, sent, escape(row["reason"])])
    more = len(layers) - len(rows)
    note = f'<p class="note">and {more} smaller tensors</p>' if more else ""
    return _table(["tensor", "codec", "before", "after", "ratio", "after, of before", "reason"], rows, (2, 3, 4)) + note


def _peer_table(run: Run) -> str:
    peers = run["stats"]["peers"]
    most = max((max(peer["bytes_sent"], peer["bytes_received"]) for peer in peers), default=0)
    hosts = {member["rank"]: member["hostname"] for member in run["members"]}
    rows = [
        [
            str(peer["peer"]),
            escape(hosts.get(peer["peer"], "?")),
            quantity(peer["bytes_sent"], BYTES),
            bar(peer["bytes_sent"], most, 0),
            quantity(peer["bytes_received"], BYTES),
            bar(peer["bytes_received"], most, 2),
        ]
        for peer in peers[:_MAX_ROWS]
    ]
    more = f", and {len(peers) - len(rows)} more ranks" if len(peers) > len(rows) else ""
    note = f'<p class="note">From rank 0 over {escape(run["metrics"]["data_path"])}{more}.</p>' if rows else ""
    return _table(["rank", "host", "sent", "", "received", ""], rows, (2, 4)) + note


def _decision_table(entries: list[dict[str, Any]]) -> str:
    rows = [
        [
            f"{entry['step']:,}",
            escape(entry["reason"]),
            quantity(entry["measured_us"] / 1e6, SECONDS),
            quantity(entry["predicted_us"] / 1e6, SECONDS),
            escape(entry["policy"]),
        ]
        for entry in entries
    ]
    return _table(["step", "reason", "measured", "predicted", "policy"], rows, (0, 2, 3))


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Returns a table of cells that are HTML; "" without rows. Columns of `numbers` are aligned to the right."""
    if not rows:
        return ""
    kinds = ['class="n"' if i in numbers else 'class="name"' if i == 0 else "" for i in range(len(names))]
    head = "".join(f"<th {kind}>{escape(name)}</th>" for name, kind in zip(names, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td {kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
