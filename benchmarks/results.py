"""Result files: rows, schema check, partial results for --resume, table.

A result file is `benchmarks/results/NAME.json` with
`{name, command, date, commit, machine, rows}`, a row with
`{metric, params, value, unit, better, n, spread, baseline, bound, target, met}`.
`spread` is `{q1, q3, low, high}`: quartiles of the samples and the 95 % bootstrap interval of the value.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.statistics import Estimate, exactly, target_met
from benchmarks.training.kept_losses import KeptLosses

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
FILE_KEYS = ("name", "command", "date", "commit", "machine", "rows")
ROW_KEYS = (
    "metric",
    "params",
    "value",
    "unit",
    "better",
    "n",
    "spread",
    "baseline",
    "bound",
    "target",
    "met",
)
SPREAD_KEYS = ("q1", "q3", "low", "high")


@dataclass(frozen=True)
class Row:
    """One figure of a result file."""

    metric: str
    params: dict[str, Any]
    value: float
    unit: str
    better: str
    n: int
    spread: dict[str, float]
    baseline: dict[str, Any] | None
    bound: float | None
    target: float | None
    met: bool | None


def make_row(
    metric: str,
    params: Mapping[str, Any],
    figure: Estimate,
    unit: str,
    better: str,
    *,
    baseline: tuple[str, float] | None = None,
    bound: float | None = None,
    target: float | None = None,
    by_value: bool = False,
) -> Row:
    """Returns a row whose verdict follows from the interval of the figure or, with `by_value`, from the value alone."""
    return Row(
        metric=metric,
        params=dict(params),
        value=figure.value,
        unit=unit,
        better=better,
        n=figure.n,
        spread=figure.spread(),
        baseline=None if baseline is None else {"name": baseline[0], "value": baseline[1]},
        bound=bound,
        target=target,
        met=target_met(exactly(figure.value) if by_value else figure, target, better),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def row_problems(row: Mapping[str, Any]) -> list[str]:
    """Returns the errors of a row; empty if the row follows the schema."""
    problems = [f"key '{key}' is missing" for key in ROW_KEYS if key not in row]
    problems += [f"key '{key}' is unknown" for key in row if key not in ROW_KEYS]
    if problems:
        return problems
    if not _is_number(row["value"]):
        problems.append(f"value {row['value']!r} is not a finite number")
    if row["better"] not in ("higher", "lower"):
        problems.append(f"better is {row['better']!r}")
    if not isinstance(row["n"], int) or row["n"] < 1:
        problems.append(f"n is {row['n']!r}")
    spread = row["spread"]
    if not isinstance(spread, Mapping) or sorted(spread) != sorted(SPREAD_KEYS):
        problems.append(f"spread is {spread!r}")
    elif not all(_is_number(spread[key]) for key in SPREAD_KEYS):
        problems.append(f"spread {spread!r} holds no finite numbers")
    baseline = row["baseline"]
    if baseline is not None and not (
        isinstance(baseline, Mapping) and sorted(baseline) == ["name", "value"] and _is_number(baseline["value"])
    ):
        problems.append(f"baseline is {baseline!r}")
    for key in ("bound", "target"):
        if row[key] is not None and not _is_number(row[key]):
            problems.append(f"{key} is {row[key]!r}")
    if (row["met"] is None) != (row["target"] is None) or row["met"] not in (None, True, False):
        problems.append(f"met is {row['met']!r} with target {row['target']!r}")
    return problems


def file_problems(content: Mapping[str, Any]) -> list[str]:
    """Returns the errors of a result file; empty if the file follows the schema."""
    problems = [f"key '{key}' is missing" for key in FILE_KEYS if key not in content]
    problems += [f"key '{key}' is unknown" for key in content if key not in FILE_KEYS]
    for index, row in enumerate(content.get("rows", [])):
        problems += [f"row {index}: {problem}" for problem in row_problems(row)]
    return problems


# ---- where and when ------------------------------------------------------------------------


def commit() -> str:
    """Measured commit, with '+changes' if tracked sources differ from it; a copy without git has BENCH_COMMIT."""

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False, timeout=30
            )
        except FileNotFoundError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return (git("rev-parse", "HEAD") or os.environ.get("BENCH_COMMIT", "unknown")) + ("+changes" if changed else "")


def machine() -> dict[str, Any]:
    """Description of the machine of the measurements."""
    model, memory_kib = "", 0
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            memory_kib = int(line.split()[1])
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


def load_warning(cores: int, load: float) -> str | None:
    """Returns a warning for the user if the machine is too busy for reliable figures; else None."""
    if load <= 0.25 * cores:
        return None
    return f"the machine is busy (load {load:.1f} on {cores} cores): figures will be noisy"


# ---- files ---------------------------------------------------------------------------------


class Store:
    """Result file and partial file of one benchmark. Every finished configuration is kept at once.

    `trainings`: losses that do not depend on measured times; they outlive the run unless it is a quick one.
    """

    def __init__(self, name: str, command: str, *, folder: Path = RESULTS, resume: bool = False) -> None:
        self.name = name
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._partial = folder / f"{name}.partial.json"
        self._head = {
            "name": name,
            "command": command,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
        }
        path = None if "--quick" in command.split() else folder / "trainings" / f"{name}.jsonl"
        self.trainings = KeptLosses(path, self._head["commit"], resume=resume)
        self._samples: dict[str, Any] = {}
        if resume and self._partial.is_file():
            kept = json.loads(self._partial.read_text())
            if kept.get("command") != command:
                raise SystemExit(f"{self._partial} belongs to '{kept.get('command')}'; delete it or give that command")
            self._samples = kept["samples"]

    @property
    def path(self) -> Path:
        """Path of the result file."""
        return self.folder / f"{self.name}.json"

    def samples(self, key: str) -> Any | None:
        """Samples of a configuration from an interrupted run; None if the configuration has to be measured."""
        return self._samples.get(key)

    def keep(self, key: str, samples: Any) -> None:
        """Writes a finished configuration to the partial file."""
        self._samples[key] = samples
        _write(self._partial, {"command": self._head["command"], "samples": self._samples})

    def finish(self, rows: Iterable[Row]) -> Path:
        """Writes the result file and removes the partial one."""
        content = {**self._head, "rows": [asdict(row) for row in rows]}
        problems = file_problems(content)
        if problems:
            raise ValueError("; ".join(problems))
        _write(self.path, content)
        self._partial.unlink(missing_ok=True)
        return self.path


def _write(path: Path, content: Any) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    temporary.replace(path)


# ---- for reading ---------------------------------------------------------------------------


def format_figure(value: float, unit: str) -> str:
    """Formats a figure with a sensible number of digits."""
    if unit == "s":
        for scale, name in ((1.0, "s"), (1e-3, "ms")):
            if abs(value) >= scale:
                return f"{value / scale:.3g} {name}"
        return f"{value / 1e-6:.3g} us"
    return f"{value:.3g}{'' if unit in ('ratio', 'share') else ' ' + unit}"


def table(rows: Sequence[Row]) -> str:
    """Formats the rows as aligned text, one line each."""
    lines = [("metric", "parameters", "value", "interval", "n", "baseline", "bound", "target", "met")]
    for row in rows:
        unit = row.unit
        lines.append(
            (
                row.metric,
                " ".join(f"{key}={value}" for key, value in row.params.items() if value is not None),
                format_figure(row.value, unit),
                f"{format_figure(row.spread['low'], unit)} .. {format_figure(row.spread['high'], unit)}",
                str(row.n),
                "" if row.baseline is None else _named(row.baseline, unit),
                "" if row.bound is None else format_figure(row.bound, unit),
                "" if row.target is None else format_figure(row.target, unit),
                {None: "", True: "yes", False: "NO"}[row.met],
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _named(baseline: Mapping[str, Any], unit: str) -> str:
    return f"{baseline['name']} {format_figure(baseline['value'], unit)}"
