"""Trains a small CNN on Fashion-MNIST with Ray Train, compressed gradients and local updates.

python examples/ray_fashion_mnist.py --workers 4

accelerate() is the only difference from any other script for Ray Train; drain() belongs to local updates.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.nn.functional as F
from ray.train.torch import TorchTrainer, prepare_model

import sirtaki
from sirtaki.torch.ddp import accelerate


def train(settings: dict[str, Any]) -> None:
    sys.path.insert(0, settings["folder"])
    from fashion_mnist import FashionNet, count_correct, load

    model = prepare_model(FashionNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ddp = accelerate(model, optimizer, local_updates=settings["local_updates"])

    batches = load(train=True).batches(64, 0, sirtaki.rank(), sirtaki.size())
    for _, (images, labels) in zip(range(settings["steps"]), batches, strict=False):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    ddp.drain()
    ray.train.report(sirtaki.metrics("sirtaki/"))
    if sirtaki.rank() == 0:
        accuracy = count_correct(getattr(model, "module", model), load(train=False)) / 10_000
        print(f"test accuracy {accuracy:.2%}, steps of {sirtaki.metrics()['step_seconds']:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with Ray Train and compression")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--local-updates", default="1", help="steps between merges, or a policy; 1: none")
    parser.add_argument("--steps", type=int, default=200)
    settings = {"folder": str(Path(__file__).resolve().parent), **vars(parser.parse_args())}
    scaling = ray.train.ScalingConfig(num_workers=settings["workers"])
    TorchTrainer(train, train_loop_config=settings, scaling_config=scaling).fit()


if __name__ == "__main__":
    main()
