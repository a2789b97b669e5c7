"""Losses of trainings that do not depend on measured times, kept beside the results in git: one JSON line a training.

A run with --resume reuses kept losses, even on another day or machine; a run without it trains again. A line is
`{key, commit, losses}`: the key contains a digest of the settings, the commit names the version of the code. Does not:
detect that the code has changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Digits of a kept loss; the rounding error is far below the difference between two seeds.
_DIGITS = 5
#: Settings of a training that do not affect its losses.
_WATCHING = ("watch", "curve")


def training_key(name: str, ranks: int, recipe: Mapping[str, Any]) -> str:
    """Returns the key of a training. `recipe`: see benchmarks/training/learning.py."""
    settings = {key: value for key, value in recipe.items() if key not in _WATCHING}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return f"{recipe['net']}/{name}/ranks={ranks}/steps={recipe['steps']}/seed={recipe['seed']}/{digest}"


class KeptLosses:
    """Kept losses of one benchmark. `path`: None keeps them for this run alone. The first keep() makes the file."""

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
        """Returns the losses of a training; None if the training has to run."""
        return self._losses.get(key)

    def keep(self, key: str, losses: Sequence[float]) -> None:
        """Keeps the losses, rounded, so that a resumed run has the same numbers. Other lines of the file stay."""
        rounded = [round(loss, _DIGITS) for loss in losses]
        self._losses[key] = rounded
        if self._path is None:
            return
        self._lines[key] = json.dumps({"key": key, "commit": self._commit, "losses": rounded}, allow_nan=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(f"{line}\n" for _, line in sorted(self._lines.items())))
        temporary.replace(self._path)
