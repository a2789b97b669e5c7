"""Jobs of `churn`: ranks under one system, and their restarts.

Owned by: the main process of the benchmark, one thread. Does not: hurt any rank, or read the files of ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from benchmarks.common.group import GroupError, free_port
from benchmarks.faults.records import Line, Reader
from benchmarks.results import ROOT

#: Seconds from the end of a process to the start of the next one in its place, which sirtakirun has, too.
COOLDOWN = 1.0
_SIRTAKI_WORKER, _TORCHFT_WORKER = "benchmarks.faults.sirtaki_worker", "benchmarks.faults.torchft_worker"


class Job(Protocol):
    """Ranks under one system."""

    def tend(self) -> str | None:
        """Starts lost ranks again, where nobody else does; returns the reason if the job has ended."""

    def end(self) -> None:
        """Ends all processes. Idempotent."""


def launcher() -> str:
    """Returns the path of sirtakirun."""
    beside = Path(sys.executable).parent / "sirtakirun"
    return str(beside) if beside.is_file() else shutil.which("sirtakirun") or "sirtakirun"


def torchft_python() -> str | None:
    """Path of an interpreter that has torchft, by $BENCH_TORCHFT_ENV or in its default place; None without it."""
    folder = os.environ.get("BENCH_TORCHFT_ENV") or str(Path.home() / ".cache/sirtaki-bench/torchft")
    programs = [Path(folder) / "bin" / name for name in ("python", "torchft_lighthouse")]
    return str(programs[0]) if all(program.is_file() for program in programs) else None


def _environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def _stop(process: subprocess.Popen[bytes], sent: signal.Signals, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(sent)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class SirtakiJob:
    """A job of sirtakirun, elastic if `elastic`, such as "2:4", and then with `spares`.

    `inside`: prefix of its command, such as one that enters a namespace.
    """

    def __init__(
        self,
        folder: Path,
        ranks: int,
        recipe: dict[str, Any],
        elastic: str = "",
        *,
        spares: int = 0,
        inside: Sequence[str] = (),
    ) -> None:
        # A place of a storm has more losses a minute than any real one.
        options = ["--elastic", elastic, "--elastic-restarts", "1000"] if elastic else []
        options += ["--spares", str(spares)] if spares else []
        recipe = {**recipe, "folder": str(folder)}
        command = [*inside, launcher(), "-np", str(ranks), *options]
        command += [sys.executable, "-m", _SIRTAKI_WORKER, json.dumps(recipe)]
        environment = _environment(SIRTAKI_REPORT_END="false")
        self._log = folder / "job.log"
        with self._log.open("wb") as out:
            self._process = _spawn(command, out, environment)

    def tend(self) -> str | None:
        """Returns the end of the log if the job has ended; sirtakirun starts lost ranks again."""
        code = self._process.poll()
        return None if code is None else f"exit code {code}: {self._log.read_text(errors='replace')[-1500:]}"

    def wait(self, seconds: float) -> int:
        """Returns the exit code."""
        return self._process.wait(seconds)

    def end(self) -> None:
        """Interrupts the job."""
        if self._process.poll() is None:
            _stop(self._process, signal.SIGINT, 20)


def train(ranks: int, recipe: dict[str, Any], elastic: str, seconds: float) -> list[Line]:
    """Trains to the end under sirtakirun, and returns the lines of all ranks.

    Raises:
        GroupError: the job has failed, or lasts longer than `seconds`.
    """
    with tempfile.TemporaryDirectory(prefix="bench-churn-") as name:
        folder = Path(name)
        job = SirtakiJob(folder, ranks, recipe, elastic)
        try:
            if job.wait(seconds) != 0:
                raise GroupError(f"a training without faults has failed: {job.tend()}")
        except subprocess.TimeoutExpired:
            raise GroupError(f"a training without faults takes longer than {seconds:.0f} s") from None
        finally:
            job.end()
        reader = Reader(folder)
        lines = reader.new_lines()
        reader.close()
    return lines


class CrowdedJob:
    """A job beside processes that are never idle."""

    def __init__(self, job: Job, spinning: int) -> None:
        self._job = job
        self._others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(spinning)]

    def tend(self) -> str | None:
        """Does as the job does."""
        return self._job.tend()

    def end(self) -> None:
        """Ends the others and the job."""
        for process in self._others:
            _stop(process, signal.SIGKILL, 5)
        self._job.end()


@dataclass
class _Slot:
    process: subprocess.Popen[bytes] | None = None
    due: float = 0.0


@dataclass
class TorchftJob:
    """A lighthouse and ranks of torchft, each of which is started again when it ends."""

    folder: Path
    ranks: int
    recipe: dict[str, Any]
    python: str
    heartbeat_ms: int
    _slots: list[_Slot] = field(default_factory=list)
    _lighthouse: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.recipe = {**self.recipe, "folder": str(self.folder)}
        port = free_port()
        self._address = f"http://127.0.0.1:{port}"
        program = str(Path(self.python).parent / "torchft_lighthouse")
        flags = {"bind": f"127.0.0.1:{port}", "min_replicas": self.recipe["least"], "join_timeout_ms": 1000}
        flags |= {"quorum_tick_ms": 50, "heartbeat_timeout_ms": self.heartbeat_ms}
        command = [program, *(part for name, value in flags.items() for part in (f"--{name}", str(value)))]
        self._lighthouse = self._start(command, "lighthouse")
        self._slots = [_Slot() for _ in range(self.ranks)]
        self.tend()

    def _start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        environment = _environment(TORCHFT_LIGHTHOUSE=self._address)
        with (self.folder / f"{name}.log").open("ab") as out:
            return _spawn(command, out, environment)

    def tend(self) -> str | None:
        """Starts ranks that have ended again."""
        now = time.monotonic()
        for number, slot in enumerate(self._slots):
            if slot.process is not None and slot.process.poll() is not None:
                slot.process, slot.due = None, now + COOLDOWN
            if slot.process is None and now >= slot.due:
                command = [self.python, "-m", _TORCHFT_WORKER, json.dumps(self.recipe), str(number)]
                slot.process = self._start(command, f"rank{number}")
        assert self._lighthouse is not None
        return None if self._lighthouse.poll() is None else "the lighthouse has ended"

    def end(self) -> None:
        """Kills all processes."""
        for process in [*(slot.process for slot in self._slots), self._lighthouse]:
            if process is not None:
                _stop(process, signal.SIGKILL, 5)


def _spawn(command: list[str], out: IO[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=ROOT
    )
