"""Runs the commands of benchmarks/gpu/run.sh so that nothing of them outlives the run, however the run ends.

    python -m benchmarks.gpu.keeper MARK

A variable of the environment, MARK, is a mark on all processes that a run starts, whatever sessions and parents they
have. A process of its own session, the keeper, makes a folder for their temporary files, tells the run its path over
the socket that is its standard input, and waits there until the run has ended: by return, by a signal, or killed. It
then ends all marked processes and removes the folder. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = "SIRTAKI_GPU_RUN"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS_TO_DIE = 5.0
#: For questions to the driver; torch may take most of a minute to load.
SECONDS_TO_ANSWER = 120.0


def marked(mark: str) -> list[int]:
    """Returns the numbers of all processes with the mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, PermissionError, ProcessLookupError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def end_all(mark: str) -> None:
    """Kills all processes with the mark, until there is none or the rest cannot be killed, as in a hanging driver."""
    end = time.monotonic() + SECONDS_TO_DIE
    while (found := marked(mark)) and time.monotonic() < end:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


@contextlib.contextmanager
def keeping() -> Iterator[str]:
    """Marks the environment of this process for its children; yields the mark. The block leaves nothing behind."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "benchmarks.gpu.keeper", mark]
    before = dict(os.environ)
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            keeper = subprocess.Popen(command, cwd=ROOT, stdin=theirs, start_new_session=True)
    except OSError:
        ours.close()
        raise
    # Leaving this block closes the socket and waits for the keeper.
    with keeper, ours:
        with ours.makefile() as told:
            folder = told.readline().rstrip("\n")
        if not folder:
            raise RuntimeError("the keeper of the run has made no folder")
        os.environ.update({MARK: mark, "TMPDIR": folder, "PYTHONUNBUFFERED": "1"})
        try:
            yield mark
        finally:
            os.environ.clear()
            os.environ.update(before)


def ask(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command that asks the driver, without a mark; returns its status and output.

    Raises subprocess.TimeoutExpired if there is no answer within SECONDS_TO_ANSWER. The command is killed then, but not
    waited for for long, because a process in a hanging driver does not die.
    """
    asked = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert asked.stdout is not None
    with asked.stdout:
        try:
            output, _ = asked.communicate(timeout=SECONDS_TO_ANSWER)
        except BaseException:
            asked.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                asked.wait(SECONDS_TO_DIE)
            raise
    return subprocess.CompletedProcess(command, asked.returncode, output)


class Commands:
    """Commands of a run, one after the other. `log` receives all output; no command runs on after `end`.

    `mark` is that of keeping(); `end` is a value of time.monotonic().
    """

    def __init__(self, mark: str, log: Path, end: float) -> None:
        self._mark = mark
        self._log = log
        self._end = end

    def seconds_left(self) -> float:
        """Seconds until no command may run."""
        return self._end - time.monotonic()

    def note(self, text: str) -> None:
        """Writes a line to the log."""
        with self._log.open("a") as log:
            log.write(f"{text}\n")

    def call(self, command: Sequence[str], environment: Mapping[str, str], limit: float = float("inf")) -> str:
        """Runs a command, and shows its output; returns the error, or an empty text."""
        # `tee` has no mark: it ends after the command and all processes that have inherited its output.
        unmarked = {name: value for name, value in os.environ.items() if name != MARK}
        with subprocess.Popen(["tee", "-a", str(self._log)], stdin=subprocess.PIPE, env=unmarked) as tee:
            assert tee.stdin is not None
            try:
                return self._call(command, environment, limit, tee.stdin.fileno())
            finally:
                tee.stdin.close()
                _end(tee)

    def call_quietly(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        """Runs a command whose output only the log receives; returns the error with the end of the output, or ""."""
        with self._log.open("ab") as log:
            begin = log.tell()
            wrong = self._call(command, environment, float("inf"), log.fileno())
        if not wrong:
            return ""
        with self._log.open("rb") as log:
            log.seek(begin)
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join([wrong, *lines[-40:]])

    def _call(self, command: Sequence[str], environment: Mapping[str, str], limit: float, output: int) -> str:
        limit = max(0.0, min(limit, self.seconds_left()))
        marked_too = {**environment, MARK: self._mark}
        running = subprocess.Popen(command, cwd=ROOT, env=marked_too, stdout=output, stderr=subprocess.STDOUT)
        try:
            status = running.wait(None if limit == float("inf") else limit)
        except subprocess.TimeoutExpired:
            return f"not done after {limit:.0f} s: {' '.join(command)}"
        finally:
            end_all(self._mark)
            _end(running)
        return "" if status == 0 else f"ended with {status}: {' '.join(command)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Waits a moment for a process that is about to end, and kills it if it does not."""
    try:
        process.wait(SECONDS_TO_DIE)
    except subprocess.TimeoutExpired:
        process.kill()


def exit_on_signals() -> None:
    """Makes signals that ask this process to end raise SystemExit, so that the keeper has done its work at the exit."""
    for number in SIGNALS:
        signal.signal(number, lambda got, _frame: sys.exit(128 + got))


def main() -> int:
    """The keeper: returns when the other end of its standard input is closed and nothing is left of the run."""
    (mark,) = sys.argv[1:]
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # Made here and not by the run, which may be killed before anybody would know of the folder.
    folder = tempfile.mkdtemp(prefix="sirtaki-gpu-")
    with contextlib.suppress(ConnectionError):
        os.write(sys.stdin.fileno(), f"{folder}\n".encode())
        sys.stdin.buffer.read()
    end_all(mark)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
