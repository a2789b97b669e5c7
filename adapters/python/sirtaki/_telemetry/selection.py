"""MetricSelection: numbers of sirtaki.metrics() for the loggers of trainers."""

from __future__ import annotations

from collections.abc import Sequence

from sirtaki._telemetry.metrics import METRICS, TEXT, metrics, pattern_of
from sirtaki.errors import require

#: Numbers that callbacks of trainers report unless told otherwise.
USUAL = ("step_seconds", "exposed_seconds", "wire_bytes", "compression_ratio")
PREFIX = "sirtaki/"


class MetricSelection:
    """Some numbers of sirtaki.metrics(), with the same names in each reading."""

    def __init__(self, names: Sequence[str] | None, prefix: str) -> None:
        """Selects numbers.

        Args:
            names: metrics, or None for all. "codec.int8.tensors" is that of one codec, and "codec.{codec}.tensors"
                stands for those of all.
            prefix: begins each name.

        Raises:
            InvalidArgumentError: there is no such number.
        """
        known = [metric.name for metric in METRICS if metric.kind != TEXT]
        for name in names or ():
            good = name in known or any(pattern_of(one).fullmatch(name) for one in known)
            require(good, f"{name!r} is not a number of sirtaki.metrics(): {', '.join(sorted(known))}")
        self._patterns = None if names is None else [pattern_of(name) for name in names]
        self._prefix = prefix
        #: A metric may go, such as that of a codec without tensors; loggers need the same names in each reading.
        self._seen: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        """Returns the numbers of this rank; 0 for those of an earlier reading that are gone. Not collective."""
        found = {
            self._prefix + name: float(value)
            for name, value in metrics().items()
            if not isinstance(value, str) and self._wants(name)
        }
        self._seen.update(dict.fromkeys(found, 0.0))
        return {**self._seen, **found}

    def _wants(self, name: str) -> bool:
        return self._patterns is None or any(pattern.fullmatch(name) for pattern in self._patterns)
