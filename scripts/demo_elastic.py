"""Reader of the elastic part of `make demo`, in which a rank is killed and comes back.

Story sends SIGKILL to a rank of examples/elastic_mnist.py, and shows what is said of it: lines of sirtakirun and the
first line of rank 0 in each epoch. Used by demo.py, which runs the job. Thread: that of the caller, and a timer.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time

STARTED = re.compile(r"^\[(\d+)\] rank (\d+) of (\d+) is process (\d+); step (\d+)")


class Story:
    """Reads the output of the job, has the victim killed, and keeps the times of what follows."""

    RANKS, VICTIM = 4, 2
    #: Seconds of training before the loss; steps of the training, enough for a new process to start and join.
    BEFORE, STEPS = 3.0, 1000

    def __init__(self, kill_after: float = BEFORE) -> None:
        self._after = kill_after
        self._timer: threading.Timer | None = None
        self.killed: float | None = None
        self.went_on: float | None = None  # seconds from the kill to the next epoch of rank 0
        self.joined = False

    def tell(self, text: str) -> None:
        """Takes a line of output, and prints it if it is worth showing."""
        if self.line(text, time.monotonic()):
            print(f"  {text}", flush=True)

    def line(self, text: str, now: float) -> bool:
        """Takes a line of output; returns true if it is worth showing."""
        started = STARTED.match(text)
        if started is None:
            self.joined |= "has joined" in text
            return text.startswith("sirtakirun:") or "test accuracy" in text
        tag, rank, size, pid = (int(started[i]) for i in range(1, 5))
        if tag == self.VICTIM and size == self.RANKS and self._timer is None:
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

    def outlived(self, status: int) -> bool:
        """Returns true if the training went on after the loss, and ended well."""
        return status == 0 and self.went_on is not None

    def verdict(self, status: int) -> str:
        """Returns the last line."""
        if not self.outlived(status):
            return (
                f"something is wrong: the training did not outlive the loss of rank {self.VICTIM} "
                f"(exit status {status})"
            )
        back = "and it came back" if self.joined else "and it was not back before the end"
        return f"{self.RANKS - 1} ranks trained on {self.went_on:.1f} s after rank {self.VICTIM} was killed, {back}"
