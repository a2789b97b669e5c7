"""The elastic part of `make demo`: a rank is killed in the middle of a training, and comes back.

Runs examples/elastic_mnist.py on the ranks of one host, sends SIGKILL to rank 2, and shows what is said of it: lines
of sirtakirun and the first line of rank 0 in each epoch. Used by demo.py. Thread: that of the caller, and a timer.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STARTED = re.compile(r"^\[(\d+)\] rank (\d+) of (\d+) is process (\d+); step (\d+)")
RANKS, VICTIM = 4, 2
#: Seconds of training before the loss; steps of the training, enough for a new process to start and join.
BEFORE, STEPS = 3.0, 1000


class Story:
    """Reads the output of the job, has the victim killed, and keeps the times of what follows."""

    def __init__(self, kill_after: float = BEFORE) -> None:
        self._after = kill_after
        self._timer: threading.Timer | None = None
        self.killed: float | None = None
        self.went_on: float | None = None  # seconds from the kill to the next epoch of rank 0
        self.joined = False

    def line(self, text: str, now: float) -> bool:
        """Takes a line of output; returns true if it is worth showing."""
        started = STARTED.match(text)
        if started is None:
            self.joined |= "has joined" in text
            return text.startswith("sirtakirun:") or "test accuracy" in text
        tag, rank, size, pid = (int(started[i]) for i in range(1, 5))
        if tag == VICTIM and size == RANKS and self._timer is None:
            self._timer = threading.Timer(self._after, self._kill, (pid,))
            self._timer.start()
        if rank == 0 and self.killed is not None and self.went_on is None:
            self.went_on = now - self.killed
        return rank == 0

    def _kill(self, pid: int) -> None:
        self.killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Takes back a kill that has not happened yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    def verdict(self, status: int) -> str:
        """Returns the last line; begins with "something is wrong" unless the training outlived the loss."""
        if status != 0 or self.went_on is None:
            return f"something is wrong: the training did not outlive the loss of rank {VICTIM} (exit status {status})"
        back = "and it came back" if self.joined else "and it was not back before the end"
        return f"{RANKS - 1} ranks trained on {self.went_on:.1f} s after rank {VICTIM} was killed, {back}"


def show(sirtakirun: str, python: str) -> bool:
    """Runs the part with its output on the screen; returns true if the training outlived the loss."""
    program = [python, str(ROOT / "examples/elastic_mnist.py"), "--epochs", "1000", "--steps", str(STEPS)]
    command = [sirtakirun, "-np", str(RANKS), "--elastic", f"2:{RANKS}", *program]
    print("\nelastic: the same kind of training, in which rank 2 is killed", flush=True)
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "SIRTAKI_REPORT_END": "false"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    story = Story()
    assert child.stdout is not None
    try:
        _tell(story, child.stdout)
        status = child.wait()
    finally:
        story.end()
        if child.poll() is None:
            child.terminate()
            child.wait()
    line = story.verdict(status)
    print(f"  {line}")
    return not line.startswith("something is wrong")


def _tell(story: Story, lines: Iterable[str]) -> None:
    for line in lines:
        text = line.rstrip("\n")
        if story.line(text, time.monotonic()):
            print(f"  {text}", flush=True)
