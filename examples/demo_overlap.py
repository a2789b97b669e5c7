"""The second program of `make demo`: times the same training with each way of waiting for gradients, in turns.

sirtakirun -np 4 python examples/demo_overlap.py

sync="step" waits in step(), "backward" waits at the end of backward(), and "forward" waits layer by layer in the next
forward pass, which then overlaps with communication, too. The resulting parameters are equal.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fashion_mnist import FashionNet, Split, load

import sirtaki.torch as hvd

MODES = ("step", "backward", "forward")
WARM_STEPS = 24  # after these steps, the runtime has measured the network and its plan is in use
ROUNDS = 3


class Training:
    """A model with one way of waiting for gradients."""

    def __init__(self, sync: str, data: Split, batch: int) -> None:
        torch.manual_seed(42)
        self._model = FashionNet()
        sgd = torch.optim.SGD(self._model.parameters(), lr=0.05, momentum=0.9)
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)
        named = self._model.named_parameters()
        self._optimizer: Any = hvd.DistributedOptimizer(sgd, named_parameters=named, sync=sync)
        self._data = data
        self._batch = batch
        self._epoch = 0
        self._batches = iter(())
        self.steps = 0
        self.seconds = 0.0
        self.exposed_seconds = 0.0

    def run(self, steps: int) -> None:
        """Makes steps, timed until the last update is complete."""
        exposed, begin = self._optimizer.exposed_seconds, time.perf_counter()
        for _ in range(steps):
            images, labels = self._next_batch()
            self._optimizer.zero_grad()
            F.cross_entropy(self._model(images), labels).backward()
            self._optimizer.step()
        self._model.state_dict()  # waits for the last step: reading parameters requires that none is in flight
        self.seconds += time.perf_counter() - begin
        self.exposed_seconds += self._optimizer.exposed_seconds - exposed
        self.steps += steps

    def warm_up(self) -> float:
        """Returns the seconds per step, after steps that are not timed."""
        self.run(WARM_STEPS // 2)
        self.steps, self.seconds = 0, 0.0
        self.run(WARM_STEPS - WARM_STEPS // 2)
        step = self.seconds / self.steps
        self.steps, self.seconds, self.exposed_seconds = 0, 0.0, 0.0
        return step

    def checksum(self) -> float:
        """Returns the sum of all parameters."""
        return sum(float(value.double().sum()) for value in self._model.state_dict().values())

    def _next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch = next(self._batches, None)
        if batch is None:
            self._batches = self._data.batches(self._batch, self._epoch, hvd.rank(), hvd.size())
            self._epoch += 1
            batch = next(self._batches)
        return batch


def main() -> None:
    parser = argparse.ArgumentParser(description="three ways of waiting for gradients, timed in turns")
    parser.add_argument("--global-batch", type=int, default=256, help="images per step, all ranks together")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each way")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0: torch decides")
    parser.add_argument("--report", type=Path, help="rank 0 writes its figures there as JSON")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    hvd.init()
    if args.global_batch % hvd.size():
        raise SystemExit(f"--global-batch {args.global_batch} does not divide among {hvd.size()} ranks")
    data = load(train=True)
    trainings = {sync: Training(sync, data, args.global_batch // hvd.size()) for sync in MODES}
    step = max(training.warm_up() for training in trainings.values())
    # All ranks must make the same number of steps.
    step = hvd.allreduce(torch.tensor([step], dtype=torch.float64), name="demo.step").item()
    steps = max(1, round(args.seconds / ROUNDS / step))
    for turn in range(ROUNDS):
        for sync in MODES if turn % 2 == 0 else reversed(MODES):
            trainings[sync].run(steps)
    names = ("seconds", "exposed_seconds", "checksum")
    report = {}
    for sync, training in trainings.items():
        mine = [training.seconds, training.exposed_seconds, training.checksum()]
        means = hvd.allreduce(torch.tensor(mine, dtype=torch.float64), name=f"demo.{sync}").tolist()
        samples = training.steps * args.global_batch / means[0]
        report[sync] = {**dict(zip(names, means, strict=True)), "steps": training.steps, "samples_per_second": samples}
    if hvd.rank() == 0 and args.report is not None:
        args.report.write_text(json.dumps(report, indent=1))
    elif hvd.rank() == 0:
        for sync, figures in report.items():
            waited = 1000 * figures["exposed_seconds"] / figures["steps"]
            print(f'sync="{sync}": {figures["samples_per_second"]:.0f} samples/s, {waited:.1f} ms a step waited')
    hvd.shutdown()


if __name__ == "__main__":
    main()
