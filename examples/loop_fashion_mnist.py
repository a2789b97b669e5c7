"""Trains a small CNN on Fashion-MNIST by a loop with events and callbacks, compressed gradients and local updates.

sirtakirun -np 4 python examples/loop_fashion_mnist.py --local-updates auto
torchrun --nproc-per-node 4 examples/loop_fashion_mnist.py

SirtakiCallback is the only difference from a loop for one process, except that each rank takes its part of the images.
Trainers with callbacks, such as Composer, have the same events.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from fashion_mnist import FashionNet, count_correct, load

import sirtaki
from sirtaki.torch.ddp import accelerate


class SirtakiCallback:
    """Accelerates the model at the start, and makes the models of all ranks equal before evaluations."""

    def __init__(self, compression: str, local_updates: str) -> None:
        self.settings = {"compression": compression, "local_updates": local_updates}

    def fit_start(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:  # noqa: D102
        self.handle = accelerate(model, optimizer, **self.settings)

    def eval_start(self) -> None:  # noqa: D102
        self.handle.drain()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST in a loop with callbacks and compression")
    parser.add_argument("--compression", default="auto", help="how gradients travel; none: as they are")
    parser.add_argument("--local-updates", default="1", help="steps between merges of the models, or a policy; 1: none")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    model, callbacks = FashionNet(), [SirtakiCallback(args.compression, args.local_updates)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for callback in callbacks:
        callback.fit_start(model, optimizer)
    batches = load(train=True).batches(64, 0, sirtaki.rank(), sirtaki.size())
    for _, (images, labels) in zip(range(args.steps), batches, strict=False):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    for callback in callbacks:
        callback.eval_start()
    if sirtaki.rank() == 0:
        accuracy, seconds = count_correct(model, load(train=False)) / 10_000, sirtaki.metrics()["step_seconds"]
        print(f"test accuracy {accuracy:.2%}, steps of {seconds:.3f} s")


if __name__ == "__main__":
    main()
