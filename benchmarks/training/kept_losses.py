"""Losses of trainings that no time changes, kept beside the results: one JSON line a training, in git.

A run with --resume goes on with them, on another day or machine, too; one without trains anew. `{key, commit, losses}`:
the key has a digest of the settings, the commit says which code it was. Does not: notice that code has changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Far below what two seeds differ by.
_DIGITS = 5
#: Of a training's settings, those that its losses do not depend on.
_WATCHING = ("watch", "curve")


def training_key(name: str, ranks: int, recipe: Mapping[str, Any]) -> str:
    """A training's name. `recipe`: of benchmarks/training/learning.py."""
    settings = {key: value for key, value in recipe.items() if key not in _WATCHING}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return f"{recipe['net']}/{name}/ranks={ranks}/steps={recipe['steps']}/seed={recipe['seed']}/{digest}"


class KeptLosses:
    """One benchmark's. `path`: None keeps them for this run alone. The file is made when the first is kept."""

    def __init__(self, path: Path | None, commit: str, *, resume: bool) -> None:
        self._path, self._commit = path, commit
        self._lines: dict[str, str] = {}
        self._losses: dict[str, list[float]] = {}
        if path is None or not path.is_file():
            return
        for line in path.read_text().splitlines():
            kept = json.loads(line)
            self._lines[kept["key"]] = line
            if resume:
                self._losses[kept["key"]] = kept["losses"]

    def get(self, key: str) -> list[float] | None:
        """None: it has to be trained."""
        return self._losses.get(key)

    def keep(self, key: str, losses: Sequence[float]) -> None:
        """Rounded, so that a run that resumes finds what this one used. Others in the file stay."""
        rounded = [round(loss, _DIGITS) for loss in losses]
        self._losses[key] = rounded
        if self._path is None:
            return
        self._lines[key] = json.dumps({"key": key, "commit": self._commit, "losses": rounded}, allow_nan=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(f"{line}\n" for _, line in sorted(self._lines.items())))
        temporary.replace(self._path)
