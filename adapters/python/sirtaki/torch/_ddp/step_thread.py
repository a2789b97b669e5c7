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
        self._idle = threading.Event()
        self._idle.set()
        _threads.add(self)

    def post(self, function: Callable[[], None]) -> None:
        """Runs `function()` after the functions posted before. Used from one thread at a time."""
        self._idle.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=(self._functions, self._idle), name=self._name)
            self._thread.daemon = True
            self._thread.start()
        self._functions.put(function)

    def settle(self) -> None:
        """Waits, after the end of the session, until the thread rests; gives up if it takes too long."""
        if self._thread is not threading.current_thread():
            self._idle.wait(_SETTLE_SECONDS)

    def close(self) -> None:
        """Ends the thread after the functions posted so far."""
        self._functions.put(None)


def _run(functions: SimpleQueue[Callable[[], None] | None], idle: threading.Event) -> None:
    # The thread keeps no reference to its StepThread, which may go at any time.
    while (function := functions.get()) is not None:
        function()
        del function
        if functions.empty():
            idle.set()
    idle.set()


_threads: weakref.WeakSet[StepThread] = weakref.WeakSet()


def _settle_all() -> None:
    for thread in list(_threads):
        thread.settle()


basics.on_shutdown(_settle_all)
