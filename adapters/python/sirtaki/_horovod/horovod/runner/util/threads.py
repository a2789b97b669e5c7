"""horovod.runner.util.threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls `target(*args)` in a new thread, which it returns.

    Args:
        target: the function.
        args: its arguments.
        name: the name of the thread.
        daemon: the thread does not keep the process alive.
        silent: drops exceptions.
    """

    def call() -> None:
        try:
            target(*args)
        except Exception:
            if not silent:
                raise

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread
