"""Starting sirtakirun with small commands as ranks, and looking at what it leaves behind."""

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
# Reads a pipe that nobody writes: waits for ever without a timer.
WAIT_FOREVER = "import signal\nwhile True: signal.pause()\n"


def launcher_path() -> str:
    """The program under test: $SIRTAKIRUN, else the one `make build` leaves."""
    return os.environ.get("SIRTAKIRUN") or str(ROOT / ".venv/bin/sirtakirun")


@dataclass
class Outcome:
    """What a finished run left."""

    code: int
    out: str
    err: str
    seconds: float


class Run:
    """One sirtakirun under test; every process below it carries a mark of its own in its environment."""

    def __init__(self, *arguments: str, prefix: tuple[str, ...] = (), program: str = "", **options: object) -> None:
        self.mark = uuid.uuid4().hex
        env = dict(os.environ, **{MARK: self.mark})
        env.update(options.pop("env", {}))  # type: ignore[arg-type, call-overload]
        settings: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        settings.update(options)
        self.started = time.monotonic()
        self.process = subprocess.Popen([*prefix, program or launcher_path(), *arguments], env=env, **settings)  # type: ignore[call-overload]

    def finish(self, timeout: float = 30.0) -> Outcome:
        """Waits for the end and returns what was printed."""
        out, err = self.process.communicate(timeout=timeout)
        return Outcome(
            self.process.returncode,
            (out or b"").decode(errors="surrogateescape"),
            (err or b"").decode(errors="surrogateescape"),
            time.monotonic() - self.started,
        )

    def marked(self) -> dict[int, list[str]]:
        """Live processes of this run, the launcher left out: pid and command line."""
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
        """Pids of processes that are neither agent nor supervisor."""
        return [pid for pid, command in self.marked().items() if "--agent" not in command and "ssh" not in command[0]]

    def stop(self) -> None:
        """Whatever is left, at the end of a test."""
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
    """Waits for `condition`, looking fifty times a second; returns the seconds it took."""
    begin = time.monotonic()
    pause = threading.Event()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < limit, f"{what}: not within {limit} s"
        pause.wait(0.02)
    return time.monotonic() - begin


@contextlib.contextmanager
def running(*arguments: str, **options: object) -> Iterator[Run]:
    """A Run that leaves nothing behind, whatever the test does."""
    run = Run(*arguments, **options)  # type: ignore[arg-type]
    try:
        yield run
    finally:
        run.stop()


def launch(*arguments: str, timeout: float = 30.0, **options: object) -> Outcome:
    """Runs to the end."""
    with running(*arguments, **options) as run:
        outcome = run.finish(timeout)
        assert not run.marked(), f"left behind: {run.marked()}"
        return outcome


def listening_ports(pids: list[int]) -> list[int]:
    """TCP ports on which these processes listen."""
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
    """Says wrong things to a port; returns connections that stay open and say nothing."""
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
