"""Hurts the ranks of a job by a schedule while they train, and collects the lines that they wrote.

Owned by: the main process of the benchmark, one thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.common.group import GroupError
from benchmarks.common.rig import say
from benchmarks.faults.cuts import cut
from benchmarks.faults.jobs import Job
from benchmarks.faults.records import CUT, STOP, Fault, Line, Reader
from benchmarks.faults.schedule import Event

#: Seconds for all ranks to train, lines of each rank before the clock begins, age of the last line of a living rank.
START_SECONDS, WARM_LINES, FRESH = 180.0, 10, 1.0
#: Seconds for which a rank is stopped or cut off, for which a fault waits for ranks, and that ranks take to end.
STOPPED, LATE, END_SECONDS = 10.0, 60.0, 5.0
_TICK = 0.02


@dataclass
class Storm:
    """Remains of a training: lines and faults by the same clock, between `begin` and `end`.

    `ended`: why the job ended before its time, which counts until `end` all the same. `left`: ranks that outlived it.
    """

    lines: list[Line] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    begin: float = 0.0
    end: float = 0.0
    ended: str = ""
    left: int = 0


class _Field:
    """The ranks of a job, as far as their files tell."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[Line] = []
        self.last: dict[int, Line] = {}  # by slot
        self._reader = Reader(folder)

    def read(self) -> None:
        for line in self._reader.new_lines():
            self.lines.append(line)
            self.last[line.slot] = line

    def living(self, spared: Sequence[int]) -> dict[int, int]:
        now = time.monotonic()
        fresh = {slot: line.pid for slot, line in self.last.items() if now - line.time < FRESH}
        return {slot: pid for slot, pid in fresh.items() if pid not in spared and _is_rank(pid)}

    def close(self) -> None:
        self.read()
        self._reader.close()


def _is_rank(pid: int) -> bool:
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" and b"benchmarks.faults." in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def rage(
    start: Callable[[Path], Job],
    ranks: int,
    least: int,
    seconds: float,
    events: Sequence[Event],
    *,
    called_off: Callable[[], bool] = lambda: False,
) -> Storm:
    """Trains for `seconds`, once all ranks do, with faults that leave at least `least` ranks unhurt.

    Requires a network namespace of the job's own for events of the kind CUT. `called_off`: ends the training early.
    """
    folder = Path(tempfile.mkdtemp(prefix="bench-churn-"))
    job = start(folder)
    storm, ranks_seen = Storm(), _Field(folder)
    injector = _Injector(ranks_seen, storm, least, events)
    try:
        _wait_for_all(job, ranks_seen, ranks)
        storm.begin = time.monotonic()
        while not storm.ended and not called_off() and time.monotonic() < storm.begin + seconds:
            time.sleep(_TICK)
            ranks_seen.read()
            injector.tick(time.monotonic())
            storm.ended = job.tend() or ""
        storm.end = max(time.monotonic(), storm.begin + seconds)
    finally:
        injector.end_faults(float("inf"))
        job.end()
        ranks_seen.close()
    if storm.ended:
        say(f"the job has ended before its time: {storm.ended}")
    storm.lines = [line for line in ranks_seen.lines if line.time <= storm.end]
    storm.left = _sweep({line.pid for line in ranks_seen.lines})
    if os.environ.get("BENCH_CHURN_KEEP"):
        say(f"the files of the ranks are in {folder}")
    else:
        shutil.rmtree(folder)
    return storm


def _wait_for_all(job: Job, ranks_seen: _Field, ranks: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while len({line.slot for line in ranks_seen.lines if line.size == ranks and line.attempts >= WARM_LINES}) < ranks:
        ended = job.tend()
        if ended is not None or time.monotonic() > deadline:
            raise GroupError(f"only ranks {sorted(ranks_seen.last)} of {ranks} came to train: {ended or 'too late'}")
        time.sleep(_TICK)
        ranks_seen.read()


def rage_together(jobs: Mapping[str, Callable[[Callable[[], bool]], Storm]]) -> dict[str, Storm]:
    """Returns the storms of several jobs that train at the same time; each gets the function `called_off`."""
    over = threading.Event()
    with ThreadPoolExecutor(len(jobs)) as pool:
        try:
            running = {name: pool.submit(job, over.is_set) for name, job in jobs.items()}
            return {name: future.result() for name, future in running.items()}
        except BaseException:
            over.set()
            raise


class _Injector:
    """Sends the faults that are due to ranks that train, as long as more than `least` do."""

    def __init__(self, ranks: _Field, storm: Storm, least: int, events: Sequence[Event]) -> None:
        self._ranks, self._storm = ranks, storm
        self._least = least
        self._due = list(events)
        # A process that is stopped or cut off has the time when its fault ends, and the function that ends it.
        self._passing: dict[int, tuple[float, Callable[[], None]]] = {}

    def tick(self, now: float) -> None:
        self.end_faults(now)
        late = now - self._storm.begin - self._due[0].after if self._due else -1.0
        if late < 0:
            return
        living = self._ranks.living(list(self._passing))
        if len(living) > self._least:
            self._storm.faults.append(self._send(self._due.pop(0), living))
        elif late > LATE:
            say(f"  a fault is left out: only ranks {sorted(living)} have trained for {LATE:.0f} s")
            self._due.pop(0)

    def end_faults(self, now: float) -> None:
        """Ends the faults that have lasted long enough at `now`."""
        for pid in [pid for pid, (until, _) in self._passing.items() if now >= until]:
            _, end = self._passing.pop(pid)
            end()

    def _send(self, event: Event, living: dict[int, int]) -> Fault:
        slot, pid = event.victim(living)
        now = time.monotonic()
        if event.kind == CUT:
            self._passing[pid] = now + STOPPED, cut(pid)
        elif event.kind == STOP:
            os.kill(pid, signal.SIGSTOP)
            self._passing[pid] = now + STOPPED, partial(_go_on, pid)
        else:
            os.kill(pid, signal.SIGKILL)
        say(f"  {now - self._storm.begin:6.1f} s: {event.kind} rank started as {slot}, process {pid}, of {len(living)}")
        return Fault(now, event.kind, slot, pid)


def _go_on(pid: int) -> None:
    if _is_rank(pid):
        os.kill(pid, signal.SIGCONT)


def _sweep(pids: set[int]) -> int:
    deadline = time.monotonic() + END_SECONDS
    while (left := [pid for pid in pids if _is_rank(pid)]) and time.monotonic() < deadline:
        time.sleep(_TICK)
    for pid in left:
        say(f"  process {pid} has outlived its job")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(left)
