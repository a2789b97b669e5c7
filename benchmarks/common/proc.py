"""Counters of this process from /proc: resident memory, and context switches by thread."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def _fields(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    return {key: value.strip() for key, _, value in pairs}


def process_counters(pid: int | None = None) -> dict[str, Any]:
    """Reads clock, resident bytes (now and peak), and for each thread its name and voluntary context switches."""
    root = Path("/proc") / str(os.getpid() if pid is None else pid)
    threads = {}
    for task in sorted((root / "task").iterdir(), key=lambda path: int(path.name)):
        try:
            fields = _fields(task / "status")
        except OSError:
            continue  # the thread has just ended
        threads[task.name] = {
            "name": fields["Name"],
            "switches": int(fields["voluntary_ctxt_switches"]),
        }
    status = _fields(root / "status")
    return {
        "seconds": time.monotonic(),
        "rss": int(status["VmRSS"].split()[0]) * 1024,
        "peak_rss": int(status["VmHWM"].split()[0]) * 1024,
        "threads": threads,
    }


def reset_peak_rss() -> None:
    """Resets the peak of resident memory to its present value."""
    Path("/proc/self/clear_refs").write_text("5")


def wakeups_per_second(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """Voluntary context switches a second by thread name; threads of one name are added up."""
    seconds = after["seconds"] - before["seconds"]
    rates: dict[str, float] = {}
    for task, thread in after["threads"].items():
        earlier = before["threads"].get(task, {"switches": 0})["switches"]
        name = thread["name"]
        rates[name] = rates.get(name, 0.0) + (thread["switches"] - earlier) / seconds
    return rates
