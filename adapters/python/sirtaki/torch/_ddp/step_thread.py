"""StepThread: a thread that ends the steps of one BucketReducer, so that no hook of DistributedDataParallel waits.

Each reducer has its own: two models may end their steps in another order on each rank.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from sirtaki import basics

_SETTLE_SECONDS = 5.0


class StepThread:
    """Runs functions, which must not raise, one after another. The thread begins with the first and ends with close().

    It is a daemon: a program that ends while a step is in flight must not wait for the step.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._functions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending = _Pending()
        _threads.add(self)

    def post(self, function: Callable[[], None]) -> None:
        """Runs `function()` after the functions posted before. Used from one thread at a time."""
        self._pending.add(1)
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=(self._functions, self._pending), name=self._name)
            self._thread.daemon = True
            self._thread.start()
        self._functions.put(function)

    def settle(self) -> None:
        """Waits, after the end of the session, until the thread rests; gives up if it takes too long."""
        if self._thread is not threading.current_thread():
            self._pending.wait(_SETTLE_SECONDS)

    def close(self) -> None:
        """Ends the thread after the functions posted so far."""
        self._functions.put(None)


class _Pending:
    """The number of functions that are posted and not over."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def add(self, change: int) -> None:
        """Adds to the number."""
        with self._changed:
            self._count += change
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Returns when there are none, or after some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0, seconds)


def _run(functions: SimpleQueue[Callable[[], None] | None], pending: _Pending) -> None:
    # The thread keeps no reference to its StepThread, which may go at any time.
    while (function := functions.get()) is not None:
        function()
        del function
        pending.add(-1)


_threads: weakref.WeakSet[StepThread] = weakref.WeakSet()


def _settle_all() -> None:
    for thread in list(_threads):
        thread.settle()


basics.on_shutdown(_settle_all)
