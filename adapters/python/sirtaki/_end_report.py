"""The report at the end of a session, of what its optimizers came to: rank 0, standard error, once.

An optimizer gets a Training when it is made and tells it of its steps. Used from the threads that make, step and close
optimizers; the report is written by the thread that ends the session. Does not: tell anything where report.end is off,
where a Progress has told it all, after an error that ends the program, or where no step was made.
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

#: Optimizers of one session that are told of, the last ones.
_MAX_TRAININGS = 8
_HEADER = "sirtaki: report (SIRTAKI_REPORT_END=false leaves it out)\n"


@dataclass(frozen=True)
class Facts:
    """What the report has of one optimizer."""

    name: str
    steps: int
    seconds: float
    exposed_seconds: float
    local: dict[str, Any] = field(default_factory=dict)
    layers: list[dict[str, Any]] = field(default_factory=list)


class Training:
    """The steps of one optimizer in the session there is; it lives as long as one of them."""

    def __init__(self, optimizer: Any, session: _Session) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._session = session
        self._generation = 0
        self._begin = self._last = time.monotonic()
        self._steps = 0
        self._waited_before = 0.0
        self._last_facts: Facts | None = None

    def stepped(self) -> None:
        """A step is over."""
        self._last = time.monotonic()
        if self._generation != basics.generation():
            if self._generation != 0:
                self._begin, self._steps = self._last, 0
            self._generation = basics.generation()
            self._session.add(self)
        self._steps += 1

    def close(self, optimizer: Any) -> None:
        """`optimizer` goes: what the report needs of it is kept. Never raises."""
        with suppress(Exception):
            if self._session.will_report(self):
                self._last_facts = self._facts_of(optimizer)

    def collect(self) -> Facts | None:
        """What there is to tell; the next session begins anew. None: the optimizer is gone and left nothing."""
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
    """The trainings of one session, and whether they have been told of."""

    def __init__(self) -> None:
        self._trainings: deque[Training] = deque(maxlen=_MAX_TRAININGS)
        self._reported = False

    def add(self, training: Training) -> None:
        """Its first step in this session has been made."""
        if basics.rank() == 0 and _report_text.end_is_wanted():
            self._trainings.append(training)

    def will_report(self, training: Training) -> bool:
        """There will be a report of it."""
        return basics.is_initialized() and not self._reported and training in self._trainings

    def mark_reported(self) -> None:
        """The program has shown a report of its own."""
        self._reported = True

    def end(self, stream: TextIO | None = None) -> None:
        """Writes the report where there is something to tell. Before the session ends; never raises."""
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
    """An error ends the program, or is being handled: its text should be the last that is seen."""
    kind = sys.exc_info()[0]
    if kind is None and not hasattr(sys, "ps1"):
        kind = getattr(sys, "last_type", None)
    return kind is not None and not issubclass(kind, (KeyboardInterrupt, SystemExit, GeneratorExit))


def _text(trainings: list[Facts], stats: dict[str, Any]) -> str:
    """The whole report; "" where nothing was trained. Without optimizers that count steps, what streams know."""
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


#: Of this process; the package has it told of the end.
session = _Session()


def follow(optimizer: Any) -> Training:
    """Of an optimizer with exposed_seconds, local_stats() and compression_report(), which has to tell its steps."""
    return Training(optimizer, session)
