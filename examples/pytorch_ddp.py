"""Trains a small CNN on Fashion-MNIST with DistributedDataParallel of torch over Sirtaki.

sirtakirun -np 4 python examples/pytorch_ddp.py --epochs 1
torchrun --nproc-per-node 4 examples/pytorch_ddp.py
torchrun --nproc-per-node 4 examples/pytorch_ddp.py --backend gloo     # for a comparison

The name of the backend is the only difference from any other script for DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fashion_mnist import FashionNet, count_correct, load
from torch.nn.parallel import DistributedDataParallel


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with DistributedDataParallel")
    parser.add_argument("--backend", default="sirtaki", help="of torch.distributed")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.0125, help="learning rate for one rank")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--steps", type=int, default=0, help="stop each epoch after so many steps; 0: never")
    return parser.parse_args()


def train_epoch(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, args: argparse.Namespace, epoch: int
) -> tuple[float, int]:
    """Makes one pass over this rank's part; returns its mean loss and the number of images seen."""
    train = load(train=True)
    total, steps = 0.0, 0
    for images, labels in train.batches(args.batch_size, epoch, dist.get_rank(), dist.get_world_size()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
        steps += 1
        if steps == args.steps:
            break
    return total / steps, steps * args.batch_size


def main() -> None:
    args = parse_arguments()
    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    model = DistributedDataParallel(FashionNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=args.momentum)

    test = load(train=False)
    for epoch in range(args.epochs):
        begin = time.monotonic()
        loss, images = train_epoch(model, optimizer, args, epoch)
        seconds = time.monotonic() - begin
        results = torch.tensor([loss / size, float(count_correct(model.module, test, rank, size))])
        dist.all_reduce(results)
        if rank == 0:
            loss, correct = results.tolist()
            rate = images * size / seconds
            print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {correct / len(test):.2%}, {rate:,.0f} images/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
