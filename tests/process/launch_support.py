"""Starts sirtakirun with small commands as ranks, and finds the processes that a run leaves behind."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
MARK = "LAUNCH_TEST_MARK"
# Waits until a signal ends the process; needs no timer.
WAIT_FOREVER = "import signal\nwhile True: signal.pause()\n"


def launcher_path() -> str:
    """Returns the program under test: $SIRTAKIRUN, else the one that `make build` installs."""
    return os.environ.get("SIRTAKIRUN") or str(ROOT / ".venv/bin/sirtakirun")


@dataclass
class Outcome:
    """Exit status, output and duration of a finished run."""

    code: int
    out: str
    err: str
    seconds: float


class Run:
    """One sirtakirun under test; the environment of every process below it carries a unique mark."""

    def __init__(self, *arguments: str, prefix: tuple[str, ...] = (), program: str = "", **options: object) -> None:
        self.mark = uuid.uuid4().hex
        env = dict(os.environ, **{MARK: self.mark})
        env.update(options.pop("env", {}))  # type: ignore[arg-type, call-overload]
        settings: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        settings.update(options)
        self.started = time.monotonic()
        self.process = subprocess.Popen([*prefix, program or launcher_path(), *arguments], env=env, **settings)  # type: ignore[call-overload]

    def read_until(self, pattern: str) -> tuple[re.Match[str], list[str]]:
        """Reads lines of the output until one has `pattern`; returns the match and the lines before it."""
        assert self.process.stdout is not None
        before: list[str] = []
        for raw in iter(self.process.stdout.readline, b""):
            line = raw.decode(errors="surrogateescape")
            if found := re.search(pattern, line):
                return found, before
            before.append(line)
        raise AssertionError(f"the output ended without {pattern!r}: {''.join(before)}\n{self.finish().err}")

    def finish(self, timeout: float = 30.0) -> Outcome:
        """Waits for the end of the run and returns its outcome."""
        out, err = self.process.communicate(timeout=timeout)
        return Outcome(
            self.process.returncode,
            (out or b"").decode(errors="surrogateescape"),
            (err or b"").decode(errors="surrogateescape"),
            time.monotonic() - self.started,
        )

    def marked(self) -> dict[int, list[str]]:
        """Returns the live processes of this run except the launcher: pid and command line."""
        needle = f"{MARK}={self.mark}".encode()
        found: dict[int, list[str]] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.process.pid:
                continue
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and needle in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().decode().split("\0")
        return found

    def ranks(self) -> list[int]:
        """Returns the pids of processes that are neither agent nor supervisor."""
        return [pid for pid, command in self.marked().items() if "--agent" not in command and "ssh" not in command[0]]

    def stop(self) -> None:
        """Kills every process that is left at the end of a test."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for pid in self.marked():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def wait_until(condition: Callable[[], object], limit: float, what: str) -> float:
    """Waits for `condition`, checking fifty times a second; returns the seconds waited."""
    begin = time.monotonic()
    pause = threading.Event()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < limit, f"{what}: not within {limit} s"
        pause.wait(0.02)
    return time.monotonic() - begin


def warm(*program: str) -> tuple[str, ...]:
    """Returns a command that runs `python *program` as a fork of an interpreter that has imported the framework.

    It saves each rank seconds. The rank ends as its fork does, but the fork has another pid and parent than the rank,
    and does not have the mark of the run. test_elastic_losses.py starts new interpreters.
    """
    from rank_support import environment, pool  # which only pytest has on its path

    return pool().command(program, environment())


@contextlib.contextmanager
def running(*arguments: str, **options: object) -> Iterator[Run]:
    """Yields a Run and ends all its processes afterwards, however the test ends."""
    run = Run(*arguments, **options)  # type: ignore[arg-type]
    try:
        yield run
    finally:
        run.stop()


def launch(*arguments: str, timeout: float = 30.0, **options: object) -> Outcome:
    """Runs a command to its end; fails if a process is left behind."""
    with running(*arguments, **options) as run:
        outcome = run.finish(timeout)
        assert not run.marked(), f"left behind: {run.marked()}"
        return outcome


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Yields a port for a server of the test, and for the next one, that no other process gets meanwhile.

    The socket does not listen, so a server may that allows the reuse of addresses, as those of Sirtaki do. The system
    gives the port to nobody who asks for any free one.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]


def listening_ports(pids: list[int]) -> list[int]:
    """Returns the TCP ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.update(re.findall(r"^socket:\[(\d+)\]$", os.readlink(entry)))
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)


def first_line(run: Run) -> str:
    assert run.process.stdout is not None
    return run.process.stdout.readline().decode()


def pester(port: int, noise: random.Random) -> list[socket.socket]:
    """Sends invalid messages to a port; returns the connections, which stay open and silent."""
    silent = []
    for speech in (b"GET / HTTP/1.1\r\n\r\n", bytes(64), noise.randbytes(5000), b""):
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with contextlib.suppress(OSError):
                link = socket.socket(family)
                link.settimeout(5)
                link.connect((host, port))
                with contextlib.suppress(OSError):
                    link.sendall(speech)
                if speech:
                    link.close()
                else:
                    silent.append(link)
    return silent
