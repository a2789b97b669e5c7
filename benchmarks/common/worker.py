"""One rank of a benchmark job: answers requests of the rig, one JSON line each way, on an inherited socket.

Started by: benchmarks/common/group.py, in the interpreter of its systems. Thread: main.
Does not: choose the measurements.
Request `{"id": n, "do": name, ...arguments}`; answer `{"id": n, "ok": result}` or `{"id": n, "error": text}`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from benchmarks.common.systems import Place, System, make_system
from benchmarks.common.workloads import Bench

CONTROL_FD = "BENCH_CONTROL_FD"
_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


class Worker:
    """Systems and workloads of this rank."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.systems: dict[str, System] = {}
        self.bench = Bench(place, self.systems)

    def start(self, system: str) -> None:
        """Makes and starts a system."""
        made = make_system(system)
        made.start(self.place)
        self.systems[system] = made

    def stop(self) -> None:
        """Stops all systems, the last started first."""
        for name in reversed(list(self.systems)):
            self.systems.pop(name).stop()

    def answer(self, request: dict[str, Any]) -> Any:
        """Runs one request."""
        what = request.pop("do")
        actions: dict[str, Callable[..., Any]] = {"start": self.start, "stop": self.stop}
        action = actions.get(what) or getattr(self.bench, what)
        return action(**request)


def _prepare() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Paced steps sleep for tens of microseconds; the default timer slack of 50 is too large for them.
    libc.prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> int:
    """Serves until the rig closes the socket."""
    _prepare()
    channel = socket.socket(fileno=int(os.environ.pop(CONTROL_FD)))
    reader = channel.makefile("r", encoding="utf-8")
    place = Place(**json.loads(reader.readline()))
    worker = Worker(place)
    for line in reader:
        reply: dict[str, Any]
        request = json.loads(line)
        number = request.pop("id")
        try:
            reply = {"id": number, "ok": worker.answer(request)}
        except Exception:
            reply = {"id": number, "error": traceback.format_exc(limit=8)}
        channel.sendall((json.dumps(reply) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
