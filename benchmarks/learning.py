"""Real trainings on one rank: a task, an optimizer, a way for gradients to travel. Runs inside worker processes.

Thread: the worker's main thread. Does not: compare; the losses and qualities of the ranks go to the main process.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch

from benchmarks.nets import make_task
from benchmarks.systems import Place, System

#: Tensors that the zero control never sends: those that codecs compress at all.
ZERO_FROM = 4096


class Learner:
    """One training.

    `recipe`: net, batch (of a rank), seed, lr (falls linearly to 0 over `steps`), momentum, steps; optional: how
    (arguments of the system's train()), zero (the control: large tensors get no gradient), watch (`ends` and `sent`
    are kept).
    """

    def __init__(self, place: Place, system: System, recipe: dict[str, Any]) -> None:
        torch.manual_seed(recipe["seed"])
        self._recipe = recipe
        self._task = make_task(recipe["net"], recipe["batch"], place.rank, place.size)
        plain = torch.optim.SGD(self._task.model.parameters(), lr=recipe["lr"], momentum=recipe["momentum"])
        model, self._optimizer = system.train(self._task.model, plain, **recipe.get("how", {}))
        self._model, self._task.model = self._task.model, model
        self._system = system
        self._batches = self._task.batches(recipe["seed"])
        self._done = 0
        self.losses: list[float] = []
        #: time.monotonic() after each step, and the bytes in which its gradients travelled.
        self.ends: list[float] = []
        self.sent: list[int] = []

    def step(self) -> None:
        """One step on the next batch."""
        recipe, optimizer = self._recipe, self._optimizer
        for group in optimizer.param_groups:
            group["lr"] = recipe["lr"] * max(0.0, 1.0 - self._done / recipe["steps"])
        optimizer.zero_grad()
        loss = self._task.loss(next(self._batches))
        loss.backward()
        if recipe.get("zero"):
            for p in self._model.parameters():
                if p.numel() >= ZERO_FROM and p.grad is not None:
                    p.grad.zero_()
        optimizer.step()
        self._done += 1
        self.losses.append(float(loss.detach()))
        if recipe.get("watch"):
            self.ends.append(time.monotonic())
            self.sent.append(sum(row["wire_bytes"] for row in optimizer.compression_report()))

    def run(self, steps: int) -> float:
        """Some steps; seconds a step."""
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._system.drain(self._optimizer)
        return (time.perf_counter() - begin) / steps

    def travel(self) -> list[dict[str, Any]]:
        """Codec, recipe, ratio and reason of each tensor."""
        keys = ("name", "codec", "recipe", "ratio", "reason")
        return [{key: row[key] for key in keys} for row in self._optimizer.compression_report()]

    def outcome(self, last: int) -> dict[str, Any]:
        """Mean loss of the last steps, this rank's part of the quality, and a digest of the parameters."""
        losses = self.losses[-last:]
        digest = hashlib.sha256()
        for p in self._model.parameters():
            digest.update(p.detach().numpy().tobytes())
        return {"loss": sum(losses) / len(losses), "quality": self._task.quality(), "digest": digest.hexdigest()}
