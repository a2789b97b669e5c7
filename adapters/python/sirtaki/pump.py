"""The pump: a Python thread that waits for finished operations, so that the runtime never takes the GIL."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable

from sirtaki import _core, basics


def _call(callback: Callable[[], None]) -> None:
    """Calls `callback`; reports an exception as for any thread, so that the other callbacks run."""
    try:
        callback()
    except Exception:
        kind, value, trace = sys.exc_info()
        threading.excepthook(threading.ExceptHookArgs((kind, value, trace, threading.current_thread())))


class Pump:
    """Calls functions when watched operations are over. The thread lives while there are watched operations."""

    _IDLE_MS = 1000
    _CAPACITY = 256
    _JOIN_SECONDS = 5.0

    def __init__(self) -> None:
        # Reentrant: the garbage collector may drop a handle, which calls watch(), at any line here.
        self._lock = threading.RLock()
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self._reminders: dict[int, tuple[float, Callable[[], None]]] = {}
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def watch(self, request: int, callback: Callable[[], None]) -> None:
        """Calls `callback()` once from the thread of the pump, also if the session ends before the operation.

        Several calls for one request are allowed; their callbacks run in the order of the calls.
        """
        with self._lock:
            watched = self._waiting.setdefault(request, [])
            watched.append(callback)
            if len(watched) > 1:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sirtaki-pump", daemon=True)
                self._thread.start()
        try:
            _core.watch(request)
        except Exception:
            with self._lock:
                callbacks = self._waiting.pop(request, [])
            for one in callbacks:
                _call(one)

    def remind(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback()` from the thread of the pump after `seconds`, up to a second late.

        Requires a watched operation at that time; without one there is no call.

        Returns:
            A function that cancels the call.
        """
        number = next(self._numbers)
        self._reminders[number] = (time.monotonic() + seconds, callback)

        def forget() -> None:
            self._reminders.pop(number, None)

        return forget

    def _due(self) -> list[Callable[[], None]]:
        now = time.monotonic()
        late = [number for number, (when, _) in list(self._reminders.items()) if when <= now]
        reminders = [self._reminders.pop(number, None) for number in late]
        return [reminder[1] for reminder in reminders if reminder is not None]

    def is_current(self) -> bool:
        """Returns True in a callback: no other callback runs before it returns."""
        return threading.current_thread() is self._thread

    def join(self) -> None:
        """Waits, after shutdown, until all callbacks have run; gives up if one takes too long."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._JOIN_SECONDS)

    def _run(self) -> None:
        generation = basics.generation()
        while True:
            finished = _core.wait_completions(self._CAPACITY, self._IDLE_MS)
            if generation != basics.generation():
                finished = None  # operations of the session before regroup()
            with self._lock:
                ids = list(self._waiting) if finished is None else finished
                callbacks = [callback for request in ids for callback in self._waiting.pop(request, [])]
                over = not self._waiting and (finished is None or not finished)
                if over:
                    self._thread = None
            for callback in [*callbacks, *self._due()]:
                _call(callback)
            if over:
                return


pump = Pump()
basics.on_shutdown(pump.join)
