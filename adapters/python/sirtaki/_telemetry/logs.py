"""LogPipe: passes the messages of the runtime to the logger `sirtaki` of Python's logging, with the option log.python.

The runtime writes to a pipe that never blocks, so its threads neither wait for Python nor take the GIL. A thread reads
the pipe.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import threading
from contextlib import suppress

LOGGER = logging.getLogger("sirtaki")
#: Levels of the runtime.
LEVELS = {"trace": 5, "debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_PIPE_BYTES = 1 << 20
_END = b"\n"  # no message is an empty line
_JOIN_SECONDS = 5.0


class LogPipe:
    """A pipe and its reader, for one session. Options for the runtime are in `options`."""

    def __init__(self) -> None:
        read_end, self._write_end = os.pipe()
        with suppress(OSError):
            # The default of 64 kB is a few hundred messages.
            fcntl.fcntl(self._write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(self._write_end, False)
        self.options: dict[str, object] = {"log.fd": self._write_end, "log.format": "json"}
        self._thread = threading.Thread(target=_read, args=(read_end,), name="sirtaki-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits until the messages up to now are passed on, and ends."""
        # A forked process may hold the pipe open, so its end is no sign. A handler that hangs leaves the pipe full.
        if select.select([], [self._write_end], [], _JOIN_SECONDS)[1]:
            # The first byte ends a message that the full pipe has cut.
            os.write(self._write_end, b"\n" + _END)
        os.close(self._write_end)
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)


def _read(read_end: int) -> None:
    with open(read_end, "rb") as lines:
        for line in lines:
            if line == _END:
                return
            # A handler of the program may raise; logging.raiseExceptions shows that.
            with suppress(Exception):
                _pass_on(line.decode(errors="replace"))


def _pass_on(line: str) -> None:
    try:
        found = json.loads(line)
    except ValueError:
        # Part of a message that the pipe did not take as a whole.
        LOGGER.warning("%s", line.rstrip("\n"))
        return
    rank = f"rank {found['rank']}: " if "rank" in found else ""
    LOGGER.log(LEVELS[found["level"]], "%s%s", rank, found["message"], extra={"sirtaki_rank": found.get("rank", -1)})
