"""sirtaki.run(): a Python function on several ranks, for notebooks and tests."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from sirtaki import errors


class RankFailedError(errors.SirtakiError, RuntimeError):
    """A rank of sirtaki.run() raised or died; `rank` says which, the cause is its exception where there is one."""


def launcher_path() -> str:
    """The sirtakirun of this installation. Raises UnavailableError when there is none."""
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

    Function, arguments and results travel by cloudpickle through a private directory, so several hosts must share its
    file system.

    Args:
        fn: calls sirtaki.torch.init() itself.
        args: positional arguments.
        kwargs: keyword arguments.
        np: number of ranks.
        hosts: "a:2,b:2" as for sirtakirun -H; None: this host.
        launcher_args: more arguments for sirtakirun.
        env: variables for the ranks, beside those of this process.
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
    try:
        return subprocess.run(
            command,
            env=env,
            timeout=timeout,
            check=False,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=None if verbose else subprocess.PIPE,
            stderr=None if verbose else subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the ranks were not done after {timeout} s and were ended") from None


def _results(place: Path, np: int, done: subprocess.CompletedProcess[str]) -> list[Any]:
    outcomes: list[Any] = []
    for rank in range(np):
        path = place / f"result.{rank}"
        outcomes.append(pickle.loads(path.read_bytes()) if path.exists() else None)
    failed = [(rank, outcome) for rank, outcome in enumerate(outcomes) if outcome is not None and not outcome[0]]
    # A rank that fails takes others with it; the one that raised something of its own is the cause.
    failed.sort(key=lambda pair: isinstance(pair[1][1], errors.HorovodInternalError))
    if failed:
        rank, (_, cause, text) = failed[0]
        raise RankFailedError(f"rank {rank} failed:\n{text}", rank) from cause
    missing = [rank for rank, outcome in enumerate(outcomes) if outcome is None]
    if missing or done.returncode != 0:
        output = (done.stdout or "").strip()
        who = f"rank {missing[0]} ended without a result" if missing else "sirtakirun failed"
        raise RankFailedError(f"{who} (exit status {done.returncode})\n{output}", missing[0] if missing else None)
    return [outcome[1] for outcome in outcomes]
