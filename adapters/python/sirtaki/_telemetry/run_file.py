"""The run file: one JSON file with everything that is known about a training at its end, for `sirtaki report`."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sirtaki import _core, basics, errors
from sirtaki._end_report import current_error, session, text_of
from sirtaki._telemetry.metrics import from_facts

FORMAT = "sirtaki-run"
#: Grows when a reader of the old version would misread a file.
VERSION = 1


class _Writer:
    """Writes the run file of each session of this process, on rank 0, if the option report.file names one."""

    def __init__(self) -> None:
        self._began = 0.0
        self._written: set[Path] = set()

    def begin(self) -> None:
        """Prepares for the end, and warns of a file that cannot be written before hours of training depend on it."""
        self._began = time.time()
        try:
            path = _path()
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir() or not os.access(path.parent, os.W_OK):
                    raise PermissionError(f"cannot write {path}")
                self._handle_sigterm()
        except Exception as error:
            _say(f"warning: there will be no run file (report.file): {error}")

    def end(self) -> None:
        """Writes the file, also after an error. Never raises."""
        try:
            path = _path()
            if path is not None and session.readings is not None:
                path = self._unused(path)
                write(path, _finite(self._contents()))
                self._written.add(path)
        except Exception as error:
            _say(f"there is no run file: {error}")
        with suppress(ValueError):
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle_sigterm(self) -> None:
        """Makes SIGTERM an exit, unless the program handles it: sirtakirun sends it after Ctrl-C and a lost rank."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number: int, frame: object) -> None:
        del frame
        # A second SIGTERM ends the process at once.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        session.terminated = True
        raise SystemExit(128 + number)

    def _ended_by(self) -> str:
        error = current_error()
        if session.terminated:
            return "SIGTERM"
        return "" if error is None else f"{type(error).__name__}: {error}".rstrip(": ")

    def _unused(self, path: Path) -> Path:
        """Returns a path that this process has not written: run.json, run-2.json for its second session."""
        number, found = 1, path
        while found in self._written:
            number += 1
            found = path.with_name(f"{path.stem}-{number}{path.suffix}")
        return found

    def _contents(self) -> dict[str, Any]:
        stats = basics.stats()
        try:
            trainings = session.facts(layers=True)
        except errors.SirtakiError:
            # A stream that has failed does not tell its layers.
            trainings = session.facts(layers=False)
        if not any(stats["tensors"].values()):
            # The stream of an optimizer that is gone is closed.
            stats["tensors"] = {facts.name: facts.layers for facts in trainings if facts.layers}
        optimizers = []
        for facts in trainings:
            samples = [asdict(point) for point in facts.samples.points()]
            optimizers.append({**vars(facts), "samples": samples})
        options = basics.options()
        return {
            "format": FORMAT,
            "version": VERSION,
            "sirtaki": _core.version(),
            "program": os.path.basename(sys.argv[0]) if sys.argv else "",
            "began": _iso(self._began),
            "ended": _iso(time.time()),
            "ended_by": self._ended_by(),
            "report": text_of(trainings, stats),
            "metrics": from_facts(stats, session.totals_now(), session.local_now()),
            "members": basics.members(),
            "options": {
                row["name"]: row["value"]
                for row in options
                if row["source"] != "default" and not row["name"].startswith("job.")
            },
            "optimizers": optimizers,
            "readings": session.last_readings(stats),
            "stats": stats,
        }


def _path() -> Path | None:
    name = basics.option("report.file") if basics.rank() == 0 else ""
    return Path(name).absolute() if name else None


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _say(text: str) -> None:
    # A program may have closed standard error.
    with suppress(Exception):
        sys.stderr.write(f"sirtaki: {text}\n")
        sys.stderr.flush()


#: The writer of this process; the package begins and ends it with each session.
writer = _Writer()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path: Path, made: dict[str, Any]) -> None:
    """Writes a run file, so that `path` has either its old or its new contents. Makes missing folders.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(made, file, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def read(path: Path) -> dict[str, Any]:
    """Returns the contents of a run file.

    Raises:
        InvalidArgumentError: the file is no run file, or one of a later version.
        OSError: the file cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise errors.InvalidArgumentError(f"{path} is not a run file: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise errors.InvalidArgumentError(f"{path} is not a run file; the option report.file makes one")
    if found["version"] != VERSION:
        raise errors.InvalidArgumentError(
            f"{path} has version {found['version']} and this Sirtaki reads version {VERSION}; use the Sirtaki "
            f"{found['sirtaki']} that wrote it"
        )
    return found
