"""Totals: sums over the steps of all optimizers of a session, which never fall."""

from __future__ import annotations

import threading


class Waits:
    """Seconds of the waits of one optimizer that Totals has; changed by Totals alone."""

    def __init__(self, counted_seconds: float) -> None:
        self.counted_seconds = counted_seconds


class Totals:
    """Sums over the steps of a session, and its last step. Optimizers that are gone remain in it.

    Used from any thread.
    """

    def __init__(self) -> None:
        # Reentrant, because the finalizer of an optimizer may interrupt a writer.
        self._lock = threading.RLock()
        self.steps = 0
        self.seconds = 0.0
        self.exposed_seconds = 0.0
        self.last_step_seconds = 0.0
        self.last_exposed_seconds = 0.0
        self.diverged_tensors = 0

    def add_step(self, seconds: float, exposed_seconds: float) -> None:
        """Adds a step. Its wait is only noted as the last one, because add_waits() adds it."""
        with self._lock:
            self.steps += 1
            self.seconds += seconds
            self.last_step_seconds, self.last_exposed_seconds = seconds, exposed_seconds

    def add_waits(self, waits: Waits, seconds: float) -> None:
        """Adds the waits of an optimizer up to now, of `seconds` since its making, that are not in the sum yet."""
        with self._lock:
            added = max(0.0, seconds - waits.counted_seconds)
            waits.counted_seconds += added
            self.exposed_seconds += added

    def add_diverged(self, tensors: int) -> None:
        """Adds tensors that were found to differ between ranks of an elastic job."""
        with self._lock:
            self.diverged_tensors += tensors
