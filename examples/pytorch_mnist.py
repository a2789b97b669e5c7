"""Trains a small CNN on Fashion-MNIST with data parallelism: a script to copy.

sirtakirun -np 4 python examples/pytorch_mnist.py --epochs 1
python examples/pytorch_mnist.py                      # one process: the same script, unchanged

The numbered comments mark all differences from a script for one process.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from fashion_mnist import FashionNet, count_correct, load

import sirtaki.torch as hvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fashion-MNIST on several ranks")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.0125, help="learning rate for one rank")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--steps", type=int, default=0, help="stop each epoch after so many steps; 0: never")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as half precision")
    return parser.parse_args()


def train_epoch(
    model: FashionNet, optimizer: torch.optim.Optimizer, args: argparse.Namespace, epoch: int
) -> tuple[float, int]:
    """Makes one pass over this rank's part; returns its mean loss and the number of images seen."""
    train = load(train=True)
    total, steps = 0.0, 0
    for images, labels in train.batches(args.batch_size, epoch, hvd.rank(), hvd.size()):
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
    hvd.init()  # 1. meet the other ranks
    torch.manual_seed(args.seed)

    model = FashionNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 2. start from the same weights
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(  # 3. average the gradients of all ranks
        optimizer, named_parameters=model.named_parameters(), compression=compression
    )

    test = load(train=False)
    for epoch in range(args.epochs):
        begin = time.monotonic()
        loss, images = train_epoch(model, optimizer, args, epoch)  # 4. each rank takes its part of a batch
        seconds = time.monotonic() - begin
        loss = hvd.allreduce(torch.tensor(loss), name="loss").item()
        correct = torch.tensor(count_correct(model, test, hvd.rank(), hvd.size()))
        correct = hvd.allreduce(correct, name="correct", op=hvd.Sum).item()
        if hvd.rank() == 0:
            rate = images * hvd.size() / seconds
            print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {correct / len(test):.2%}, {rate:,.0f} images/s")
    hvd.shutdown()


if __name__ == "__main__":
    main()
