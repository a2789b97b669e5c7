"""Trains a small CNN on Fashion-MNIST with Hugging Face Accelerate, compressed gradients and local updates.

accelerate launch --multi_gpu --num_processes 4 examples/accelerate_fashion_mnist.py --local-updates auto
sirtakirun -np 4 python examples/accelerate_fashion_mnist.py

accelerate_prepared() is the only difference from any other script for Accelerate; drain() belongs to local updates.
For several processes on CPUs, `accelerate launch` needs --multi_gpu, too.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from fashion_mnist import FashionNet, count_correct, load
from torch.utils.data import DataLoader, TensorDataset

import sirtaki
from sirtaki.huggingface import accelerate_prepared


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with Accelerate and compression")
    parser.add_argument("--local-updates", default="1", help="steps between merges of the models, or a policy; 1: none")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    model = FashionNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(TensorDataset(*load(train=True).batch(slice(None))), batch_size=64, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    settings = {"compression": "auto", "local_updates": args.local_updates}
    handle = accelerate_prepared(accelerator, model, optimizer, **settings)

    for _, (images, labels) in zip(range(args.steps), loader, strict=False):
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(model(images), labels))
        optimizer.step()
    handle.drain()
    rank, ranks = accelerator.process_index, accelerator.num_processes
    correct = count_correct(accelerator.unwrap_model(model), load(train=False), rank, ranks)
    correct = accelerator.reduce(torch.tensor(correct))
    if accelerator.is_main_process:
        print(f"test accuracy {correct.item() / 10_000:.2%}, steps of {sirtaki.metrics()['step_seconds']:.3f} s")
    accelerator.end_training()


if __name__ == "__main__":
    main()
