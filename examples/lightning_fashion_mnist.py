"""Trains a small CNN on Fashion-MNIST with Lightning, compressed gradients and local updates.

torchrun --nproc-per-node 4 examples/lightning_fashion_mnist.py --local-updates auto

SirtakiStrategy is the only difference from any other script for Lightning; SirtakiMetrics fills the logger.
"""

from __future__ import annotations

import argparse

import lightning
import torch
import torch.nn.functional as F
from fashion_mnist import FashionNet, load
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import sirtaki
from sirtaki.lightning import SirtakiMetrics, SirtakiStrategy


class Module(lightning.LightningModule):
    """The model, its losses and its optimizer, as for any training with Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.net = FashionNet()

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:  # noqa: D102
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], _: int) -> None:  # noqa: D102
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:  # noqa: D102
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with Lightning and compression")
    parser.add_argument("--devices", type=int, default=4, help="processes on this host")
    parser.add_argument("--local-updates", default="1", help="steps between merges of the models, or a policy; 1: none")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    strategy = SirtakiStrategy(compression="auto", local_updates=args.local_updates)
    settings = {"accelerator": "cpu", "devices": args.devices, "max_steps": args.steps, "callbacks": [SirtakiMetrics()]}
    trainer = lightning.Trainer(strategy=strategy, **settings)
    train, test = (TensorDataset(*load(train=part).batch(slice(None))) for part in (True, False))
    module = Module()
    trainer.fit(module, DataLoader(train, batch_size=64, shuffle=True))
    accuracy = trainer.validate(module, DataLoader(test, batch_size=500), verbose=False)[0]["accuracy"]
    if trainer.is_global_zero:
        print(f"test accuracy {accuracy:.2%}, steps of {sirtaki.metrics()['step_seconds']:.3f} s")


if __name__ == "__main__":
    main()
