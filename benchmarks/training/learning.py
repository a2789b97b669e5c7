"""Real trainings on one rank: a task, an optimizer, a reduction of gradients. Runs inside worker processes.

Thread: the main thread of the worker. Does not: compare; the losses and qualities of the ranks go to the main process.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.systems import Place, System
from benchmarks.training.faults import Fault
from benchmarks.training.nets import Task, make_task
from benchmarks.training.optimizers import make_optimizer
from benchmarks.training.replayed import Replayed

#: Elements from which on the zero control never sends a tensor; codecs compress the same tensors.
ZERO_FROM = 4096
#: Keys of local_stats() that are kept after each step; the exposed_seconds of the optimizer follow them.
PACE = ("interval", "delay", "divergence", "merges_excluded", "scratch_bytes", "busy_seconds")


def _sent_in_all() -> int:
    """Returns the bytes of gradients that this process has sent, as plans count them."""
    import sirtaki  # processes of other systems cannot import it

    return int(sirtaki.stats().get("streams.wire_bytes", 0))


def interface_bytes(interface: str) -> int:
    """Returns the bytes that a network interface of this namespace has sent."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    raise ValueError(f"this namespace has no interface {interface}")


class Learner:
    """One training.

    `recipe`: net, batch (of a rank), seed, lr (falls linearly to 0 over `steps`), momentum, steps; optional: optimizer
    (benchmarks/training/optimizers.py), rise (number of first steps in which the rate rises to lr), how (arguments of
    train() of the system), zero (the control: large tensors get no gradient), watch ("sent": `ends` are kept, and
    `sent` on rank 0; "local": `ends` and `paces`), interface (`starts`, `ends` and `sent` are kept, the latter as
    counted by this network interface; "": as 0), curve (number of steps after which the common model of the ranks is
    kept, for curve(); run() then ends with equal models, as a part of its last step), fault
    (benchmarks/training/faults.py), unseen (number of shards of the data that no rank trains on), replayed (seconds of
    forward and backward: compute is a wait, see benchmarks/training/replayed.py).
    """

    def __init__(self, place: Place, system: System, recipe: dict[str, Any]) -> None:
        torch.manual_seed(recipe["seed"])
        self._recipe = recipe
        self._task: Task = make_task(recipe["net"], recipe["batch"], place.rank, place.size, recipe.get("unseen", 0))
        if recipe.get("replayed"):
            self._task = Replayed(self._task, recipe["seed"], recipe["replayed"])
        self._fault = Fault(place.rank, **recipe["fault"]) if recipe.get("fault") else None
        optimizer = recipe.get("optimizer", "sgd")
        plain = make_optimizer(self._task.model, optimizer, recipe["lr"], recipe["momentum"])
        model, self._optimizer = system.train(self._task.model, plain, **recipe.get("how", {}))
        self._model, self._task.model = self._task.model, model
        self._system = system
        self._batches = self._task.batches(recipe["seed"])
        self._done = 0
        self._rank = place.rank
        self._sent_before = _sent_in_all() if recipe.get("watch") == "sent" else 0
        self.losses: list[float] = []
        #: Steps made before each call of run(), and time.monotonic() at its beginning.
        self.starts: list[tuple[int, float]] = []
        #: time.monotonic() after each step, and the bytes that it has sent.
        self.ends: list[float] = []
        self.sent: list[int] = []
        #: State of local updates after each step: see PACE.
        self.paces: list[list[float]] = []
        self._kept: list[tuple[int, list[torch.Tensor]]] = []

    def step(self) -> None:
        """Makes one step on the next batch."""
        recipe, optimizer = self._recipe, self._optimizer
        for group in optimizer.param_groups:
            group["lr"] = recipe["lr"] * self._share_of_rate()
        optimizer.zero_grad()
        batch = next(self._batches)
        if self._fault is not None:
            batch = self._fault.spoil(self._done, batch, optimizer)
        loss = self._task.loss(batch)
        loss.backward()
        if recipe.get("zero"):
            for p in self._model.parameters():
                if p.numel() >= ZERO_FROM and p.grad is not None:
                    p.grad.zero_()
        if "local_updates" in recipe.get("how", {}):
            optimizer.report_loss(loss)
        optimizer.step()
        self._done += 1
        self.losses.append(float(loss.detach()))
        watch, interface = recipe.get("watch"), recipe.get("interface")
        if watch or interface is not None:
            self.ends.append(time.monotonic())
        if interface is not None:
            self._count(interface)
        elif watch == "sent" and self._rank == 0:
            # The runtime counts these bytes anyway; a report would read all residuals, which costs time in the step.
            total = _sent_in_all()
            self.sent.append(total - self._sent_before)
            self._sent_before = total
        if watch == "local":
            self.paces.append(self._pace())
        if recipe.get("curve") and self._done % recipe["curve"] == 0:
            with optimizer.global_model() if hasattr(optimizer, "global_model") else contextlib.nullcontext():
                self._kept.append((self._done, [p.detach().clone() for p in self._model.parameters()]))

    def _share_of_rate(self) -> float:
        rise, steps = self._recipe.get("rise", 0), self._recipe["steps"]
        return min(1.0, (self._done + 1) / (rise + 1)) * max(0.0, 1.0 - self._done / steps)

    def _count(self, interface: str) -> None:
        total = interface_bytes(interface) if interface else 0
        self.sent.append(total - self._sent_before)
        self._sent_before = total

    def _pace(self) -> list[float]:
        if not hasattr(self._optimizer, "local_stats"):
            return [0.0] * (len(PACE) + 1)
        stats = self._optimizer.local_stats()
        return [*(float(stats.get(key, 0)) for key in PACE), self._optimizer.exposed_seconds]

    def run(self, steps: int) -> float:
        """Runs some steps; returns the seconds a step."""
        interface = self._recipe.get("interface")
        if interface:
            self._sent_before = interface_bytes(interface)
        self.starts.append((self._done, time.monotonic()))
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._system.drain(self._optimizer)
        if self._recipe.get("curve") and hasattr(self._optimizer, "drain"):
            self._optimizer.drain()
            self._drained()
        return (time.perf_counter() - begin) / steps

    def _drained(self) -> None:
        """Makes the drain a part of the last step."""
        if self.ends:
            self.ends[-1] = time.monotonic()
        if self.paces:
            self.paces[-1] = self._pace()
        interface = self._recipe.get("interface")
        if interface:
            before = self.sent.pop()
            self._count(interface)
            self.sent[-1] += before

    def outcome(self, last: int) -> dict[str, Any]:
        """Returns mean loss of the last steps, the part of this rank in the quality, and a digest of the parameters.

        Collective.
        """
        losses = self.losses[-last:]
        digest = hashlib.sha256()
        for p in self._model.parameters():
            digest.update(p.detach().numpy().tobytes())
        return {"loss": sum(losses) / len(losses), "quality": self._task.quality(), "digest": digest.hexdigest()}

    @torch.no_grad()
    def curve(self) -> list[list[float]]:
        """Returns steps and loss of the kept models and of the present one, on the part of this rank in a sample."""
        params = list(self._model.parameters())
        now = (self._done, [p.clone() for p in params])
        out = []
        for step, kept in (*self._kept, now):
            for p, value in zip(params, kept, strict=True):
                p.copy_(value)
            out.append([float(step), self._task.sample_loss()])
        return out

    def ready(self) -> list[float]:
        """Returns the times of gradients of a replayed training: see Replayed."""
        assert isinstance(self._task, Replayed)
        return self._task.ready()

    def watched(self) -> dict[str, Any]:
        """Returns the records of all steps, and the present statistics of local updates."""
        return {
            "losses": self.losses,
            "starts": self.starts,
            "ends": self.ends,
            "sent": self.sent,
            "paces": self.paces,
            "local": self._optimizer.local_stats() if hasattr(self._optimizer, "local_stats") else {},
        }
