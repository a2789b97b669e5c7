"""Trains a small CNN on Fashion-MNIST with the Trainer of Transformers, compressed gradients and local updates.

torchrun --nproc-per-node 4 examples/huggingface_fashion_mnist.py --local-updates auto

SirtakiCallback is the only difference from any other script for Trainer; add_metrics() fills the loggers.
"""

from __future__ import annotations

import argparse

import torch.nn.functional as F
from fashion_mnist import FashionNet, load
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import sirtaki
from sirtaki.huggingface import SirtakiCallback, add_metrics


class Model(nn.Module):
    """A model that returns a dictionary with the loss, as models of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = FashionNet()

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:  # noqa: D102
        scores = self.net(images)
        return {"loss": F.cross_entropy(scores, labels), "logits": scores}


def rows_of(train: bool) -> list[dict[str, Tensor]]:
    images, labels = load(train).batch(slice(None))
    return [{"images": image, "labels": label} for image, label in zip(images, labels, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with Trainer and compression")
    parser.add_argument("--local-updates", default="1", help="steps between merges of the models, or a policy; 1: none")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", default="huggingface_fashion_mnist", help="folder of checkpoints and logs")
    args = parser.parse_args()
    settings = TrainingArguments(args.output, max_steps=args.steps, learning_rate=1e-3, use_cpu=True, logging_steps=10)
    settings.per_device_train_batch_size = 64
    callback = SirtakiCallback("auto", args.local_updates)
    trainer = Trainer(Model(), settings, train_dataset=rows_of(train=True), callbacks=[callback])
    add_metrics(trainer)
    trainer.train()
    found = trainer.predict(rows_of(train=False))
    if trainer.is_world_process_zero():
        accuracy = (found.predictions.argmax(1) == found.label_ids).mean()
        print(f"test accuracy {accuracy:.2%}, steps of {sirtaki.metrics()['step_seconds']:.3f} s")


if __name__ == "__main__":
    main()
