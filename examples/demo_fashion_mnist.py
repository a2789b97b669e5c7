"""The training program of `make demo`: pytorch_mnist.py with a live line and a report.

sirtakirun -np 4 python examples/demo_fashion_mnist.py --epochs 3
python examples/demo_fashion_mnist.py --plain         # torch alone, one process, the same batches

Exposed communication is the time in which a rank has nothing to do but wait for gradients.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fashion_mnist import FashionNet, count_correct, load

RISE = 40  # steps in which the learning rate rises


@dataclass
class Epoch:
    """Results of one epoch."""

    loss: float
    accuracy: float
    seconds: float
    exposed_seconds: float


@dataclass
class Report:
    """Report of a training, written as JSON for scripts/demo.py."""

    ranks: int
    parameters: int
    global_batch: int
    steps_per_epoch: int
    epochs: list[Epoch] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=dict)
    curve: list[tuple[float, float, int]] = field(default_factory=list)


class Plain:
    """One process without a runtime: the operations that a training needs, as no-ops."""

    rank, size = 0, 1

    def optimizer(self, _model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Returns the optimizer unchanged."""
        return optimizer

    def waited(self, optimizer: torch.optim.Optimizer) -> float:
        """Returns the seconds that this rank has waited for gradients of other ranks so far."""
        del optimizer
        return 0.0

    def settle(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes the models of all ranks equal if ranks make local updates (sirtakirun --local-updates)."""

    def local_stats(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Returns counters of local updates."""
        del optimizer
        return {}

    def mean(self, values: list[float], name: str) -> list[float]:
        """Returns the mean over the ranks."""
        del name
        return values

    def stats(self) -> dict[str, Any]:
        """Returns counters of the runtime."""
        return {}

    def close(self) -> None:
        """Leaves the job."""


class Distributed(Plain):
    """The same operations for a job of several ranks."""

    def __init__(self) -> None:
        import sirtaki.torch as hvd

        self._hvd = hvd
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def optimizer(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Starts all ranks from the same weights and averages their gradients."""
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        self._hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return self._hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def waited(self, optimizer: Any) -> float:
        """Returns the seconds that this rank has waited for gradients of other ranks so far."""
        return optimizer.exposed_seconds

    def settle(self, optimizer: Any) -> None:
        """Makes the models of all ranks equal if ranks make local updates (sirtakirun --local-updates)."""
        optimizer.drain()

    def local_stats(self, optimizer: Any) -> dict[str, Any]:
        """Returns counters of local updates."""
        return optimizer.local_stats()

    def mean(self, values: list[float], name: str) -> list[float]:
        """Returns the mean over the ranks."""
        return self._hvd.allreduce(torch.tensor(values, dtype=torch.float64), name=name).tolist()

    def stats(self) -> dict[str, Any]:
        """Returns counters of the runtime on this rank."""
        import sirtaki

        return sirtaki.stats()

    def close(self) -> None:
        """Leaves the job."""
        self._hvd.shutdown()


class Curve:
    """Training loss of every step against the seconds of training, which begin with the first step.

    The clock stands still between passes, so that the test images cost nothing.
    """

    WINDOW = 20  # steps of the running mean
    MOST_POINTS = 400

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._times: list[float] = []
        self._begin = 0.0

    @property
    def steps(self) -> int:
        """Returns the number of steps so far."""
        return len(self._times)

    @property
    def seconds(self) -> float:
        """Returns the seconds of training at the end of the last step."""
        return self._times[-1] if self._times else 0.0

    def resume(self) -> None:
        """Lets the clock go on; called right before the first step of a pass."""
        self._begin = time.perf_counter() - self.seconds

    def add(self, loss: float) -> None:
        """Notes the loss of a step that has just ended."""
        self._losses.append(loss)
        self._times.append(time.perf_counter() - self._begin)

    def points(self, world: Plain) -> list[tuple[float, float, int]]:
        """Returns seconds, running mean of the loss over the ranks and the last 20 steps, and steps; at most 400."""
        losses = world.mean(self._losses, "demo.curve")
        stride = -(-self.steps // self.MOST_POINTS)
        points = []
        for end in range(self.steps, 0, -stride):
            last = losses[max(0, end - self.WINDOW) : end]
            points.append((round(self._times[end - 1], 4), round(sum(last) / len(last), 5), end))
        return points[::-1]


def rising(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Returns a schedule in which the learning rate rises in the first steps (Goyal et al., 2017).

    From the full rate on, the loss of this net jumps back to that of its random weights after some fifteen steps; when
    it does so depends on rounding, and hides the differences between methods.
    """
    return torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / RISE, total_iters=RISE)


class LiveLine:
    """One line, rewritten on a terminal; elsewhere a new line every `interval` seconds."""

    def __init__(self, wanted: bool, interval: float) -> None:
        self._wanted = wanted
        self._terminal = sys.stdout.isatty()
        self._interval = 0.2 if self._terminal else interval
        self._last = time.monotonic()

    def show(self, text: str, done: bool = False) -> None:
        """Shows `text`; `done` ends the line."""
        now = time.monotonic()
        if not self._wanted or not (done or now - self._last > self._interval):
            return
        self._last = now
        if self._terminal:
            sys.stdout.write(f"\r\033[K{text}" + ("\n" if done else ""))
        else:
            sys.stdout.write(text + "\n")
        sys.stdout.flush()


class Trainer:
    """Model, optimizer and data of one rank."""

    def __init__(self, world: Plain, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self._world = world
        self._global_batch: int = args.global_batch
        self._live: float = args.live
        self._model = FashionNet()
        sgd = torch.optim.SGD(self._model.parameters(), lr=args.lr, momentum=0.9)
        self._optimizer = world.optimizer(self._model, sgd)
        self._schedule = rising(self._optimizer)
        self._train, self._test = load(train=True), load(train=False)
        self.parameters = sum(p.numel() for p in self._model.parameters())
        self.steps = len(self._train) // self._global_batch
        self._curve = Curve()
        world.mean([0.0], "demo.begin")  # no rank begins its first step while others still read the images

    def epoch(self, number: int) -> Epoch:
        """Makes one pass over the training images and one over the test images; returns equal results on every rank."""
        loss, seconds, waited = self._pass(number)
        correct = float(count_correct(self._model, self._test, self._world.rank, self._world.size))
        means = self._world.mean([loss, correct, seconds, waited], f"demo.epoch.{number}")
        return Epoch(means[0], means[1] * self._world.size / len(self._test), means[2], means[3])

    def local_stats(self) -> dict[str, Any]:
        """Returns counters of local updates; empty without them."""
        return self._world.local_stats(self._optimizer)

    def curve(self) -> list[tuple[float, float, int]]:
        """Returns the training loss against the seconds of training; every rank must call curve()."""
        return self._curve.points(self._world)

    def _pass(self, number: int) -> tuple[float, float, float]:
        world, line = self._world, LiveLine(self._world.rank == 0, self._live)
        batches = self._train.batches(self._global_batch // world.size, number, world.rank, world.size)
        total = waited = elapsed = 0.0
        begin, waited_before = time.perf_counter(), world.waited(self._optimizer)
        self._curve.resume()
        for step, (images, labels) in enumerate(batches, 1):
            self._optimizer.zero_grad()
            loss = F.cross_entropy(self._model(images), labels)
            loss.backward()
            self._optimizer.step()
            self._schedule.step()
            waited = world.waited(self._optimizer) - waited_before
            value = loss.item()
            self._curve.add(value)
            total += value
            elapsed = time.perf_counter() - begin
            exposed = f"  exposed communication {waited / elapsed:4.0%}" if world.size > 1 else ""
            line.show(
                f"  epoch {number + 1}  step {step:>3}/{self.steps}  loss {total / step:.4f}  "
                f"{step * self._global_batch / elapsed:>6,.0f} samples/s{exposed}",
                done=step == self.steps,
            )
        world.settle(self._optimizer)
        waited = world.waited(self._optimizer) - waited_before
        return total / self.steps, time.perf_counter() - begin, waited


def main() -> None:
    parser = argparse.ArgumentParser(description="training program of the demo")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--global-batch", type=int, default=256, help="images per step, all ranks together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--plain", action="store_true", help="torch alone, one process")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0: torch decides")
    parser.add_argument("--live", type=float, default=5.0, help="seconds between lines of progress")
    parser.add_argument("--report", type=Path, help="rank 0 writes its figures there as JSON")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    world = Plain() if args.plain else Distributed()
    if args.global_batch % world.size:
        raise SystemExit(f"--global-batch {args.global_batch} does not divide among {world.size} ranks")
    trainer = Trainer(world, args)
    report = Report(world.size, trainer.parameters, args.global_batch, trainer.steps)
    for number in range(args.epochs):
        report.epochs.append(trainer.epoch(number))
    report.stats, report.local, report.curve = world.stats(), trainer.local_stats(), trainer.curve()
    if world.rank == 0 and args.report is not None:
        args.report.write_text(json.dumps(asdict(report), indent=1))
    world.close()


if __name__ == "__main__":
    main()
