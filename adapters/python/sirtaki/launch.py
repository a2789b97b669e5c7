"""sirtaki.run(): calls a Python function on several ranks, for notebooks and tests."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from sirtaki import errors

#: Time for the launcher to end its ranks, in seconds.
_END_SECONDS = 10.0


class RankFailedError(errors.SirtakiError, RuntimeError):
    """A rank of sirtaki.run() raised or died; `rank` is its number, the text has its traceback.

    The cause is the exception of the rank if that can be pickled.
    """


def launcher_path() -> str:
    """Returns the path of sirtakirun of this installation. Raises UnavailableError if there is none."""
    beside = Path(sys.executable).with_name("sirtakirun")
    found = str(beside) if beside.exists() else shutil.which("sirtakirun")
    if found is None:
        raise errors.UnavailableError(
            f"sirtakirun is neither beside {sys.executable} nor on PATH; install the package sirtaki there"
        )
    return found


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 2,
    *,
    hosts: str | None = None,
    launcher_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    verbose: bool = False,
) -> list[Any]:
    """Calls `fn(*args, **kwargs)` on `np` new ranks and returns their results by rank.

    Function, arguments and results are pickled by cloudpickle in a private directory, so several hosts must share its
    file system.

    Args:
        fn: a function, which calls sirtaki.torch.init() itself.
        args: positional arguments.
        kwargs: keyword arguments.
        np: number of ranks.
        hosts: "a:2,b:2" as for sirtakirun -H; None: this host.
        launcher_args: more arguments for sirtakirun.
        env: variables for the ranks, in addition to those of this process.
        timeout: seconds; None: without limit.
        verbose: shows the output of the ranks.

    Raises:
        ValueError: `fn` cannot be called, or `np` is no number of ranks.
        RankFailedError: a rank raised or died; names the first and shows its error.
        TimeoutError: the ranks were not done in time and were ended.
    """
    import cloudpickle

    errors.require(callable(fn), f"fn is {fn!r}; it must be a function, which calls sirtaki.torch.init() itself")
    errors.require(isinstance(np, Integral) and np >= 1, f"np is {np!r}; it must be an integer of 1 or more")
    with tempfile.TemporaryDirectory(prefix="sirtaki-run-") as folder:
        place = Path(folder)
        (place / "call").write_bytes(cloudpickle.dumps((fn, tuple(args), dict(kwargs or {}))))
        command = [launcher_path(), "-np", str(np), *(("-H", hosts) if hosts else ()), *launcher_args]
        command += [sys.executable, "-m", "sirtaki._run_rank", folder]
        search = os.pathsep.join(path or os.getcwd() for path in sys.path)
        done = _call(command, {**os.environ, "PYTHONPATH": search, **(env or {})}, timeout, verbose)
        return _results(place, np, done)


def _call(
    command: list[str], env: dict[str, str], timeout: float | None, verbose: bool
) -> subprocess.CompletedProcess[str]:
    stdout, stderr = (None, None) if verbose else (subprocess.PIPE, subprocess.STDOUT)
    with subprocess.Popen(
        command,
        env=env,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=restore_sigquit,  # noqa: PLW1509  (touches nothing but the signal)
    ) as launcher:
        try:
            output, _ = launcher.communicate(timeout=timeout)
        except BaseException as error:
            end(launcher)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(f"the ranks were not done after {timeout} s and were ended") from None
            raise
    return subprocess.CompletedProcess(command, launcher.returncode, output)


def restore_sigquit() -> None:
    """Lets SIGQUIT end the launcher, see end(): a background program of a shell ignores it and passes that on."""
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def end(launcher: subprocess.Popen[str]) -> None:
    """Makes a launcher, started with restore_sigquit(), end all ranks at once, without time to save anything."""
    launcher.send_signal(signal.SIGQUIT)
    try:
        launcher.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        launcher.kill()


def _results(place: Path, np: int, done: subprocess.CompletedProcess[str]) -> list[Any]:
    outcomes = [_outcome(place / f"result.{rank}") for rank in range(np)]
    failed = [(rank, outcome) for rank, outcome in enumerate(outcomes) if outcome is not None and not outcome.good]
    # A rank that fails takes others with it; the cause is the rank with an error of its own.
    failed.sort(key=lambda pair: isinstance(pair[1].value, errors.HorovodInternalError))
    if failed:
        rank, outcome = failed[0]
        cause = outcome.value if isinstance(outcome.value, BaseException) else None
        raise RankFailedError(f"rank {rank} failed:\n{outcome.text}", rank) from cause
    missing = [rank for rank, outcome in enumerate(outcomes) if outcome is None]
    if missing or done.returncode != 0:
        output = (done.stdout or "").strip()
        who = f"rank {missing[0]} ended without a result" if missing else "sirtakirun failed"
        raise RankFailedError(f"{who} (exit status {done.returncode})\n{output}", missing[0] if missing else None)
    return [outcome.value for outcome in outcomes if outcome is not None]


@dataclass(frozen=True)
class _Outcome:
    """Outcome of a rank: its result, or its exception with the traceback as text."""

    good: bool
    value: Any
    text: str


def _outcome(path: Path) -> _Outcome | None:
    if not path.exists():
        return None
    good, data, text = pickle.loads(path.read_bytes())
    if data is None:
        return _Outcome(False, None, text)
    try:
        return _Outcome(good, pickle.loads(data), text)
    except Exception as error:
        # An exception class whose constructor needs more arguments than `args` holds can be pickled but not unpickled.
        what = "result" if good else "exception"
        why = f"the {what} cannot be unpickled here: {type(error).__name__}: {error}"
        return _Outcome(False, None, f"{text}{why}")
