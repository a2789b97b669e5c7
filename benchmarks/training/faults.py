"""Injected faults on one rank of a training, for drills. Runs inside worker processes, on their main thread.

Does not: detect or repair any fault.
"""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

CLASSES = 10


class Fault:
    """One kind of fault of rank `rank`, from step `at` on.

    "nan": one batch of the rank is not a number. "lr": the learning rate is `factor` times the right one, to the end.
    "labels": classes are numbered in reverse, to the end. "stall": the thread of the training sleeps once for
    `seconds`.
    """

    def __init__(
        self, here: int, *, kind: str, rank: int, at: int, factor: float = 100.0, seconds: float = 30.0
    ) -> None:
        self._mine = here == rank
        self._kind, self._at = kind, at
        self._factor, self._seconds = factor, seconds

    def spoil(self, step: int, batch: tuple[Tensor, Tensor], optimizer: Any) -> tuple[Tensor, Tensor]:
        """Injects the fault before step `step` (from 0), once its learning rate is set; returns the batch to use."""
        if not self._mine or step < self._at:
            return batch
        inputs, labels = batch
        if self._kind == "lr":
            for group in optimizer.param_groups:
                group["lr"] *= self._factor
        elif self._kind == "labels":
            labels = CLASSES - 1 - labels
        elif step == self._at and self._kind == "nan":
            inputs = inputs * float("nan")
        elif step == self._at and self._kind == "stall":
            time.sleep(self._seconds)
        return inputs, labels
