"""Files of the ranks of `churn`: each writes one line a step, in a file that outlives it. Standard library only.

A line is written in one piece behind the step, so a rank that is killed leaves whole lines, or the last one torn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import BinaryIO

KILL, STOP, CUT = "kill", "stop", "cut"


@dataclass(frozen=True)
class Line:
    """A step of one rank.

    Requires `time` by the machine's monotonic clock. `slot`: place of the process in the job, kept by its successors.
    `generation`: number of the membership, which grows. `step`: number of the commit. `attempts`: steps that this
    process has begun. `indices`: samples of this rank. `busy`: seconds of the step without the wait of the pace.
    `loss`: on samples that are held out, in nats; None in most steps.
    """

    time: float
    pid: int
    slot: int
    generation: int
    step: int
    size: int
    attempts: int
    committed: bool
    epoch: int
    digest: int
    indices: Sequence[int]
    busy: float
    loss: float | None = None


@dataclass(frozen=True)
class Fault:
    """A rank that was sent SIGKILL (KILL) or SIGSTOP (STOP), or whose connections carry nothing any more (CUT)."""

    time: float
    kind: str
    slot: int
    pid: int


class Log:
    """File of this process."""

    def __init__(self, folder: str | Path, slot: int) -> None:
        self._file = (Path(folder) / f"{slot}.{os.getpid()}.jsonl").open("ab", buffering=0)

    def write(self, line: Line) -> None:
        """Appends a line."""
        self._file.write(json.dumps(astuple(line), separators=(",", ":")).encode() + b"\n")


class Reader:
    """Reads files of a folder as they grow."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._open: dict[Path, BinaryIO] = {}
        self._rest: dict[Path, bytes] = {}

    def new_lines(self) -> list[Line]:
        """Returns the whole lines that were written since the last call."""
        lines: list[Line] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            if path not in self._open:
                self._open[path], self._rest[path] = path.open("rb"), b""
            *whole, self._rest[path] = (self._rest[path] + self._open[path].read()).split(b"\n")
            lines += map(parse, whole)
        return lines

    def close(self) -> None:
        """Closes the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def parse(text: bytes | str) -> Line:
    """Returns the line of a text."""
    return Line(*json.loads(text))


def by_process(lines: Iterable[Line]) -> dict[int, list[Line]]:
    """Returns the lines by process, in the order of their times."""
    found: dict[int, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line.time):
        found.setdefault(line.pid, []).append(line)
    return found
