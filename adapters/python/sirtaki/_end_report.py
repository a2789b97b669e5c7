"""The report of the optimizers at the end of a session: on rank 0, to standard error, once.

An optimizer gets a Training when it is made and notifies it of steps, on every rank. Used from the threads that make,
step and close optimizers; the thread that ends the session writes the report. There is no report if report.end is off,
if a Progress has shown one, after an error that ends the program, or without any step.
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
from sirtaki._telemetry.readings import Readings
from sirtaki._telemetry.samples import StepSamples
from sirtaki._telemetry.totals import Totals, Waits

#: Number of optimizers in a report, the last ones of the session.
_MAX_TRAININGS = 8
_HEADER = "sirtaki: report (SIRTAKI_REPORT_END=false leaves it out)\n"


@dataclass(frozen=True)
class Facts:
    """Facts about one optimizer in a session."""

    name: str
    steps: int
    seconds: float
    exposed_seconds: float
    samples: StepSamples
    local: dict[str, Any] = field(default_factory=dict)
    layers: list[dict[str, Any]] = field(default_factory=list)


class Training:
    """Steps of one optimizer since the last report. It lives as long as the optimizer or the session."""

    def __init__(self, optimizer: Any, session: _Session) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._session = session
        self._part = 0
        self._begin = self._last = time.monotonic()
        self._steps = 0
        self._waited_before = self._waited = 0.0
        self._waits = Waits(0.0)
        self._samples = StepSamples()
        self._last_facts: Facts | None = None

    def stepped(self) -> None:
        """Records a step."""
        before, self._last = self._last, time.monotonic()
        if self._part != self._session.part:
            if self._part != 0:
                self._begin = before = self._last
                self._waited_before = self._waited = self._waits.counted_seconds
                self._steps, self._samples = 0, StepSamples()
            self._part = self._session.part
            self._session.add(self)
        self._steps += 1
        optimizer = self._optimizer()
        waited_before, self._waited = self._waited, getattr(optimizer, "exposed_seconds", self._waited)
        step = self._last - before, self._waited - waited_before
        self._samples.add(*step)
        self._session.totals.add_step(*step)
        self._session.totals.add_waits(self._waits, self._waited)
        self._session.stepped(self._last, optimizer)

    def close(self, optimizer: Any) -> None:
        """Keeps the facts for the session, because `optimizer` is about to go. Never raises."""
        with suppress(Exception):
            self.count_waits(optimizer)
            if self._session.has(self):
                self._last_facts = self._facts_of(optimizer, self._session.wants_layers())

    def count_waits(self, optimizer: Any = None) -> None:
        """Adds waits after the last step to the totals of the session. `optimizer` is given where it is about to go."""
        optimizer = self._optimizer() if optimizer is None else optimizer
        if optimizer is not None and self._part == self._session.part:
            self._session.totals.add_waits(self._waits, optimizer.exposed_seconds)

    def facts(self, layers: bool) -> Facts | None:
        """Returns the facts, see Session.facts(); None if the optimizer is gone and left none."""
        optimizer = self._optimizer()
        return self._last_facts if optimizer is None else self._facts_of(optimizer, layers)

    def _facts_of(self, optimizer: Any, layers: bool) -> Facts:
        waited = optimizer.exposed_seconds - self._waited_before
        seconds = max(1e-9, self._last - self._begin)
        rows = optimizer.compression_report() if layers else []
        name = type(optimizer).__name__
        return Facts(name, self._steps, seconds, waited, self._samples, optimizer.local_stats(), rows)


class _Session:
    """Trainings of one session."""

    def __init__(self) -> None:
        self._trainings: deque[Training] = deque(maxlen=_MAX_TRAININGS)
        self._reported = False
        #: Number of the report to come. A rank that wants to leave an elastic job and has to stay makes more than one.
        self.part = 1
        #: SIGTERM ends the program, as after Ctrl-C in the launcher. Another rank may end first; that is no failure.
        self.terminated = False
        self.totals = Totals()
        #: local_stats() at the last reading, of the last optimizer that has some.
        self.last_local: dict[str, Any] = {}
        #: None: nobody reads them.
        self.readings: Readings | None = None

    def begin(self) -> None:
        """Begins a session."""
        self._begin_part()
        self.terminated = False
        self.totals, self.last_local = Totals(), {}
        wanted = (basics.rank() == 0 and basics.option("report.file")) or basics.option("metrics.port") != "0"
        self.readings = Readings() if wanted else None

    def _begin_part(self) -> None:
        self._trainings.clear()
        self.part += 1

    def stepped(self, now: float, optimizer: Any) -> None:
        """Makes a reading after a step of `optimizer`, if one is due."""
        if self.readings is not None and self.readings.is_due(now):
            self.readings.read(self.totals.steps, basics.stats, lambda: self._local_of(optimizer))

    def _local_of(self, optimizer: Any) -> dict[str, Any]:
        """Returns the statistics of local updates of an optimizer, or the last ones of another that has them."""
        self.last_local = optimizer.local_stats() or self.last_local
        return self.last_local

    def totals_now(self) -> Totals:
        """Returns the totals, with the waits up to now. Any thread may call it."""
        for training in list(self._trainings):
            training.count_waits()
        return self.totals

    def local_now(self) -> dict[str, Any]:
        """Returns the statistics of local updates of the last optimizer that has some, or those of the last reading."""
        return next((facts.local for facts in reversed(self.facts()) if facts.local), self.last_local)

    def last_readings(self, stats: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns all readings, the last one from `stats`."""
        if self.readings is None:
            return []
        self.readings.read(self.totals.steps, lambda: stats, self.local_now)
        return self.readings.rows()

    def add(self, training: Training) -> None:
        """Adds a training at its first step since the last report."""
        self._trainings.append(training)

    def has(self, training: Training) -> bool:
        """Returns True if the training belongs to the current session."""
        return basics.is_initialized() and training in self._trainings

    def will_report(self) -> bool:
        """Returns True if this session will write a report on this rank."""
        return not self._reported and basics.rank() == 0 and _report_text.end_is_wanted()

    def wants_layers(self) -> bool:
        """Returns True if a report or a run file will read the layers of optimizers."""
        return self.readings is not None or self.will_report()

    def facts(self, layers: bool = False) -> list[Facts]:
        """Returns the facts of the last optimizers up to now, those of layers only if wanted, because they cost more.

        Call it from the thread that steps.
        """
        found = (training.facts(layers) for training in list(self._trainings))
        return [facts for facts in found if facts is not None]

    def mark_reported(self) -> None:
        """Suppresses the report, because the program has shown one."""
        self._reported = True

    def end(self, stream: TextIO | None = None) -> None:
        """Writes the report of the steps since the last one, if there are any.

        Called before the session ends, or may end; never raises.
        """
        text = ""
        try:
            if self.will_report() and (self.terminated or not failing()):
                text = text_of(self.facts(layers=True), basics.stats())
        except Exception as error:
            text = f"sirtaki: there is no report at the end: {error}\n"
        self._begin_part()
        self._reported = False
        out = sys.stderr if stream is None else stream
        # A program may have closed standard error.
        with suppress(Exception):
            out.write(text)
            out.flush()


def current_error() -> BaseException | None:
    """Returns the exception that ends the program or is being handled."""
    error = sys.exc_info()[1]
    if error is None and not hasattr(sys, "ps1"):
        error = getattr(sys, "last_value", None)
    return error


def failing() -> bool:
    """Returns True if an error ends the program or is being handled: its text should be the last output."""
    error = current_error()
    return error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))


def text_of(trainings: list[Facts], stats: dict[str, Any]) -> str:
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
