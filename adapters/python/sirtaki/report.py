"""A live line during training and a report at its end, on rank 0.

progress = Progress(steps_per_epoch=len(loader), samples_per_step=batch * sirtaki.size(), optimizer=optimizer)
for epoch in range(epochs):
    for images, labels in loader:
        ...
        optimizer.step()
        progress.step(epoch, loss.item())
progress.end()
"""

from __future__ import annotations

import os
import stat
import sys
import time
from typing import Any, TextIO

from sirtaki import basics
from sirtaki._end_report import session
from sirtaki._report_text import (
    aligned,
    byte_rows,
    decision_lines,
    end_is_wanted,
    layer_lines,
    local_rows,
    placement_rows,
    step_rows,
)


class Progress:
    """Counts steps; on rank 0 prints a line that is renewed, and a report at the end.

    The options report.live ("auto": if the output is a terminal, also under sirtakirun) and report.end select the
    output. Without a Progress, or without a call of end(), a session with a DistributedOptimizer prints its report when
    it ends.
    """

    _TERMINAL_PAUSE = 0.2  # seconds between renewals
    _PLAIN_PAUSE = 5.0  # seconds between lines if they cannot be renewed

    def __init__(
        self, steps_per_epoch: int, samples_per_step: int, optimizer: Any = None, stream: TextIO | None = None
    ) -> None:
        """Starts the clock.

        Args:
            steps_per_epoch: number of steps in an epoch, for the live line.
            samples_per_step: samples of all ranks in a step.
            optimizer: a DistributedOptimizer, which counts the seconds of waits; None shows no waits.
            stream: output; None: standard error.
        """
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty() or _shown_on_terminal(self._stream)
        live = basics.option("report.live")
        first = basics.rank() == 0
        self._live = first and (live == "on" or (live == "auto" and self._terminal))
        self._end = first and end_is_wanted()
        self._optimizer = optimizer
        self._steps_per_epoch = steps_per_epoch
        self._samples_per_step = samples_per_step
        self._begin = self._shown = time.monotonic()
        self._steps = 0
        self._loss = 0.0
        self._loss_steps = 0
        self._epoch = -1

    def step(self, epoch: int, loss: float) -> None:
        """Counts a step; `epoch` from 0, `loss` of this rank."""
        if epoch != self._epoch:
            self._epoch, self._loss, self._loss_steps = epoch, 0.0, 0
        self._steps += 1
        self._loss += loss
        self._loss_steps += 1
        now = time.monotonic()
        last = self._loss_steps == self._steps_per_epoch
        if self._live and (last or now - self._shown > (self._TERMINAL_PAUSE if self._terminal else self._PLAIN_PAUSE)):
            self._shown = now
            self._write(self.line(), last)

    def line(self) -> str:
        """Returns the text of the live line."""
        return (
            f"epoch {self._epoch + 1}  step {self._loss_steps}/{self._steps_per_epoch}"
            f"  loss {self._loss / max(1, self._loss_steps):.4f}  {self.samples_per_second():,.0f} samples/s"
            f"  exposed communication {self.exposed_share():.0%}"
        )

    def samples_per_second(self) -> float:
        """Returns the samples per second of all ranks together, since the start."""
        return self._steps * self._samples_per_step / max(1e-9, time.monotonic() - self._begin)

    def exposed_share(self) -> float:
        """Returns the part of the time in which this rank only waited for gradients, 0 to 1."""
        waited = getattr(self._optimizer, "exposed_seconds", 0.0)
        return float(waited / max(1e-9, time.monotonic() - self._begin))

    def end(self) -> None:
        """Prints the report, unless report.end is off. Call it before shutdown(), which then prints none."""
        session.mark_reported()
        if not self._end:
            return
        stats = basics.stats()
        waited = getattr(self._optimizer, "exposed_seconds", 0.0)
        rows = [
            *placement_rows(stats),
            *step_rows(self._steps, max(1e-9, time.monotonic() - self._begin), waited),
            ("throughput", f"{self.samples_per_second():,.0f} samples/s"),
            *byte_rows(stats),
            *local_rows(getattr(self._optimizer, "local_stats", dict)()),
        ]
        lines = layer_lines(getattr(self._optimizer, "compression_report", list)())
        self._stream.write(aligned(rows, [*lines, *decision_lines(stats)]))
        self._stream.flush()

    def _write(self, text: str, done: bool) -> None:
        if self._terminal:
            self._stream.write(f"\r\033[K{text}" + ("\n" if done else ""))
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def _shown_on_terminal(stream: TextIO) -> bool:
    """Returns True if sirtakirun shows `stream` on a terminal: standard error, if still the pipe of sirtakirun."""
    if "SIRTAKI_JOB_TERMINAL" not in os.environ or stream is not sys.stderr:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
