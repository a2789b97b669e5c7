"""Rows and lines of a report on training, made from sirtaki.stats() and from reports of optimizers."""

from __future__ import annotations

from typing import Any

from sirtaki import basics

#: Rows of the table of tensors in a report; further tensors are counted.
_MAX_LAYERS = 20
#: Changes of plan or compression of a stream in a report, the last ones.
_MAX_CHANGES = 4


def end_is_wanted() -> bool:
    """Returns the option report.end."""
    return basics.option("report.end").lower() == "true"


def aligned(rows: list[tuple[str, str]], lines: list[str]) -> str:
    """Returns a report: names and texts in two columns, then the lines."""
    width = max(len(name) for name, _ in rows)
    return "".join(f"  {name:<{width}}  {text}\n" for name, text in rows) + "".join(f"  {line}\n" for line in lines)


def placement_rows(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns rows for the placement of ranks and the data path, from sirtaki.stats()."""
    ranks = placement(stats.get("ranks_by_host", [basics.size()]))
    return [("ranks", ranks), ("data through", str(stats.get("data_path", "?")))]


def step_rows(steps: int, seconds: float, waited: float) -> list[tuple[str, str]]:
    """Returns rows for `steps` steps in `seconds`, of which `waited` seconds were waits for gradients."""
    each = f", {seconds / steps * 1e3:.3g} ms each" if steps > 0 else ""
    return [
        ("steps", f"{steps} in {seconds:.1f} s{each}"),
        ("exposed communication", f"{min(1.0, waited / seconds):.1%} of the time"),
    ]


def byte_rows(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns rows for the bytes of gradients, from sirtaki.stats(); [] if no gradients were sent."""
    raw, wire = stats.get("streams.raw_bytes"), stats.get("streams.wire_bytes")
    if raw is None or wire is None:
        return []
    rows = [("gradients", f"{raw / 1e6:,.1f} MB"), ("sent as", f"{wire / 1e6:,.1f} MB")]
    if raw > wire:
        rows.append(("saved by compression", f"{1 - wire / raw:.0%}"))
    return rows


def layer_lines(report: list[dict[str, Any]]) -> list[str]:
    """Returns a table of the largest tensors and the number of the others; [] if all are sent uncompressed."""
    if all(row["codec"] == "none" for row in report):
        return []
    largest = sorted(range(len(report)), key=lambda i: report[i]["held_bytes"], reverse=True)[:_MAX_LAYERS]
    lines = layer_table([report[i] for i in sorted(largest)])
    if len(report) > len(largest):
        lines.append(f"and {len(report) - len(largest)} smaller tensors, see sirtaki.stats()['tensors']")
    return lines


def decision_lines(stats: dict[str, Any]) -> list[str]:
    """Returns lines on the changes that a policy made and on its last decision, from sirtaki.stats()."""
    lines = []
    for stream, entries in stats.get("decisions", {}).items():
        decisions = [entry for entry in entries if entry["policy"]]
        changes = [entry for entry in decisions if entry["next_plan"] != entry["plan"] and entry["reason"] != "adopted"]
        shown = changes[-_MAX_CHANGES:] + [entry for entry in decisions[-1:] if entry["reason"] != "adopted"]
        if changes:
            # The last decision may be a change itself.
            unique = {entry["step"]: entry for entry in shown}.values()
            lines += [f"{stream}, step {entry['step']}: {entry['policy']}" for entry in unique]
    return lines


def placement(ranks_by_host: list[int]) -> str:
    """Returns the number of ranks and hosts: "4 on one host", "4 on 2 hosts, 2 each", "4 on 2 hosts, 3 + 1"."""
    ranks, hosts = sum(ranks_by_host), len(ranks_by_host)
    if hosts == 1:
        return f"{ranks} on one host"
    if len(set(ranks_by_host)) == 1:
        return f"{ranks} on {hosts} hosts, {ranks_by_host[0]} each"
    return f"{ranks} on {hosts} hosts, {' + '.join(str(count) for count in ranks_by_host)}"


def local_rows(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns rows for local_stats() of an optimizer; [] without local updates."""
    if not stats:
        return []
    interval, delay, reason = stats["interval"], stats["delay"], stats["reason"]
    pace = f"a merge every {interval} steps, {delay} later" if stats["mode"] == "local" else "each step's gradients"
    rows = [("local updates", f"{pace} ({reason})")]
    if stats["synchronous_cost"] > 0:
        rows.append(("synchronous steps waited", f"{stats['synchronous_cost']:.1%} of a step without waiting"))
    merged = f"{stats['merged_bytes'] / 1e6:,.1f} MB as float32"
    rows.append(("merges", f"{stats['merges']} in {stats['rounds']} rounds, {merged}"))
    troubles = {"late": "merges_late", "given up": "merges_given_up", "without this rank": "merges_excluded"}
    counts = [f"{stats[key]} {name}" for name, key in troubles.items() if stats[key] > 0]
    if counts:
        rows.append(("merges in trouble", ", ".join(counts)))
    alarms = [f"{count} {guard}" for guard, count in stats["alarms"].items() if count > 0]
    if alarms:
        rows.append(("alarms", ", ".join(alarms)))
    return rows


def layer_table(report: list[dict[str, Any]]) -> list[str]:
    """Returns the rows of compression_report(), or of a stream in stats(), as aligned lines."""
    cells = [("tensor", "codec", "recipe", "density", "kB", "ratio", "residual", "reason")]
    for row in report:
        residual = f"{row['owed_norm']:.3g}" if row.get("owed_norm", 0.0) > 0 else ""
        density, size = f"{row['density']:.3g}", f"{row['wire_bytes'] / 1e3:,.1f}"
        cells.append(
            (row["name"], row["codec"], row["recipe"], density, size, f"{row['ratio']:.1f}", residual, row["reason"])
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in cells
    ]
