"""The training of `churn`: a small net on made-up classes, at a pace that leaves the processors idle most of a step."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES, CLASSES = 64, 10
#: Samples that no training sees.
HELD_OUT = 2000


class Task:
    """Model, optimizer and data.

    `recipe`: `width` of the net, `dataset` and `batch` (samples), `digest`, `ballast`: MB of state that nobody trains.
    """

    def __init__(self, recipe: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(recipe.get("seed", 1))
        width = recipe["width"]
        layers = [nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, CLASSES)]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        if recipe.get("ballast"):
            self.model.register_buffer("ballast", torch.zeros(recipe["ballast"] * 10**6 // 4))
        self._dataset = recipe["dataset"]
        self._points = torch.randn(self._dataset + HELD_OUT, FEATURES)
        self._labels = (self._points @ torch.randn(FEATURES, CLASSES)).argmax(1)
        self._digests = recipe["digest"]

    def loss(self, model: nn.Module, indices: Sequence[int]) -> Tensor:
        """Returns the loss of `model` on some samples."""
        chosen = torch.tensor(indices)
        return F.cross_entropy(model(self._points[chosen]), self._labels[chosen])

    def held_out_loss(self) -> float:
        """Returns the loss on samples that no training sees, in nats."""
        with torch.no_grad():
            return float(self.loss(self.model, range(self._dataset, self._dataset + HELD_OUT)))

    def digest(self) -> int:
        """Returns a digest of all bits of the parameters."""
        found = 0
        for parameter in self.model.parameters() if self._digests else ():
            found = zlib.crc32(memoryview(parameter.detach().numpy()).cast("B"), found)
        return found


class Pace:
    """Gives each step a time; a late step delays all later ones."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begin = self._due = time.monotonic()

    def busy(self) -> float:
        """Returns the seconds since the begin of this step."""
        return time.monotonic() - self._begin

    def wait(self) -> None:
        """Waits for the end of this step."""
        now = time.monotonic()
        self._due = max(self._due + self._seconds, now)
        if self._due > now:
            time.sleep(self._due - now)
        self._begin = time.monotonic()
