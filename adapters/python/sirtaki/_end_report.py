"""The report of the optimizers at the end of a session: on rank 0, to standard error, once.

An optimizer gets a Training when it is made and notifies it of steps. Used from the threads that make, step and close
optimizers; the thread that ends the session writes the report. There is no report if report.end is off, if a Progress
has shown one, after an error that ends the program, or without any step.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

from sirtaki import _report_text, basics

#: Number of optimizers in a report, the last ones of the session.
_MAX_TRAININGS = 8
_HEADER = "sirtaki: report (SIRTAKI_REPORT_END=false leaves it out)\n"


@dataclass(frozen=True)
class Facts:
    """Facts about one optimizer for the report."""

    name: str
    steps: int
    seconds: float
    exposed_seconds: float
    local: dict[str, Any] = field(default_factory=dict)
    layers: list[dict[str, Any]] = field(default_factory=list)


class Training:
    """Steps of one optimizer in the current session. It lives as long as the optimizer or the session."""

    def __init__(self, optimizer: Any, session: _Session) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._session = session
        self._generation = 0
        self._begin = self._last = time.monotonic()
        self._steps = 0
        self._waited_before = 0.0
        self._last_facts: Facts | None = None

    def stepped(self) -> None:
        """Records a step."""
        self._last = time.monotonic()
        if self._generation != basics.generation():
            if self._generation != 0:
                self._begin, self._steps = self._last, 0
            self._generation = basics.generation()
            self._session.add(self)
        self._steps += 1

    def close(self, optimizer: Any) -> None:
        """Keeps the facts for the report, because `optimizer` is about to go. Never raises."""
        with suppress(Exception):
            if self._session.will_report(self):
                self._last_facts = self._facts_of(optimizer)

    def collect(self) -> Facts | None:
        """Returns the facts and begins anew for the next session; None if the optimizer is gone and left no facts."""
        optimizer = self._optimizer()
        if optimizer is None:
            return self._last_facts
        facts = self._facts_of(optimizer)
        self._waited_before = optimizer.exposed_seconds
        return facts

    def _facts_of(self, optimizer: Any) -> Facts:
        waited = optimizer.exposed_seconds - self._waited_before
        seconds = max(1e-9, self._last - self._begin)
        name = type(optimizer).__name__
        return Facts(name, self._steps, seconds, waited, optimizer.local_stats(), optimizer.compression_report())


class _Session:
    """Trainings of one session."""

    def __init__(self) -> None:
        self._trainings: deque[Training] = deque(maxlen=_MAX_TRAININGS)
        self._reported = False

    def add(self, training: Training) -> None:
        """Adds a training at its first step in this session."""
        if basics.rank() == 0 and _report_text.end_is_wanted():
            self._trainings.append(training)

    def will_report(self, training: Training) -> bool:
        """Returns True if the report will contain this training."""
        return basics.is_initialized() and not self._reported and training in self._trainings

    def mark_reported(self) -> None:
        """Suppresses the report, because the program has shown one."""
        self._reported = True

    def end(self, stream: TextIO | None = None) -> None:
        """Writes the report, if there are facts. Called before the session ends; never raises."""
        trainings, reported = list(self._trainings), self._reported
        self._trainings.clear()
        self._reported = False
        if reported or failing():
            return
        out = sys.stderr if stream is None else stream
        try:
            if basics.rank() != 0 or not _report_text.end_is_wanted():
                return
            found = [facts for facts in (training.collect() for training in trainings) if facts is not None]
            text = _text(found, basics.stats())
        except Exception as error:
            text = f"sirtaki: there is no report at the end: {error}\n"
        # A program may have closed standard error.
        with suppress(Exception):
            out.write(text)
            out.flush()


def failing() -> bool:
    """Returns True if an error ends the program or is being handled: its text should be the last output."""
    kind = sys.exc_info()[0]
    if kind is None and not hasattr(sys, "ps1"):
        kind = getattr(sys, "last_type", None)
    return kind is not None and not issubclass(kind, (KeyboardInterrupt, SystemExit, GeneratorExit))


def _text(trainings: list[Facts], stats: dict[str, Any]) -> str:
    """Returns the whole report; "" without training. Without counted steps it shows the statistics of the streams."""
    streams: dict[str, list[dict[str, Any]]] = stats.get("tensors", {})
    if not trainings and not any(streams.values()):
        return ""
    rows = [*_report_text.placement_rows(stats), *_report_text.byte_rows(stats)]
    lines: list[str] = []
    for facts in trainings:
        if len(trainings) > 1:
            rows.append(("optimizer", facts.name))
        rows += _report_text.step_rows(facts.steps, facts.seconds, facts.exposed_seconds)
        rows += _report_text.local_rows(facts.local)
        lines += _report_text.layer_lines(facts.layers)
    if not trainings:
        for layers in streams.values():
            lines += _report_text.layer_lines(layers)
    return _HEADER + _report_text.aligned(rows, [*lines, *_report_text.decision_lines(stats)])


#: Trainings of this process; the package ends it with the session.
session = _Session()


def follow(optimizer: Any) -> Training:
    """Returns a Training for an optimizer with exposed_seconds, local_stats() and compression_report()."""
    return Training(optimizer, session)
