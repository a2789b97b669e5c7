"""Trains a small CNN on Fashion-MNIST with data parallelism: a script to copy.

sirtakirun -np 4 python examples/pytorch_mnist.py --epochs 1
sirtakirun -np 4 --compression auto python examples/pytorch_mnist.py
python examples/pytorch_mnist.py                      # one process: the same script, unchanged

The numbered comments mark all differences from a script for one process.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import sirtaki.torch as hvd

#: Debian's package dataset-fashion-mnist puts the files here.
FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))


def images_of(part: str) -> TensorDataset:
    """Returns images and labels of "train" or "t10k"; noisy pictures of ten patterns if the files are missing."""
    if not FOLDER.exists():
        labels = torch.arange(10_000) % 10
        patterns = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0)).round()
        return TensorDataset((patterns[labels] + torch.rand(10_000, 1, 28, 28)) / 2, labels)
    files = [FOLDER / f"{part}-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1")]
    images, labels = (
        torch.frombuffer(bytearray(gzip.decompress(file.read_bytes())), dtype=torch.uint8) for file in files
    )
    return TensorDataset(images[16:].view(-1, 1, 28, 28) / 255, labels[8:].long())


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@torch.no_grad()
def count_correct(model: nn.Module, images: TensorDataset) -> int:
    """Returns the number of images in this rank's part that the model classifies correctly."""
    loader = DataLoader(images, 500, sampler=range(hvd.rank(), len(images), hvd.size()))
    return sum(int((model(pixels).argmax(1) == labels).sum()) for pixels, labels in loader)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST on several ranks")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.0125, help="learning rate for one rank")
    parser.add_argument("--steps", type=int, help="stop each epoch after so many steps")
    args = parser.parse_args()

    hvd.init()  # 1. meet the other ranks
    torch.manual_seed(42)
    train, test = images_of("train"), images_of("t10k")
    sampler = DistributedSampler(train, hvd.size(), hvd.rank())  # 2. each rank reads its part of the images
    loader = DataLoader(train, args.batch_size, sampler=sampler)

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 3. start from the same weights
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    # 4. average the gradients of all ranks
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(args.epochs):
        begin, losses = time.monotonic(), []
        sampler.set_epoch(epoch)
        for images, labels in itertools.islice(loader, args.steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds = time.monotonic() - begin
        loss = hvd.allreduce(torch.tensor(losses).mean(), name="loss").item()  # 5. combine results
        correct = hvd.allreduce(torch.tensor(count_correct(model, test)), name="correct", op=hvd.Sum).item()
        if hvd.rank() == 0:
            rate = len(losses) * args.batch_size * hvd.size() / seconds
            print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {correct / len(test):.2%}, {rate:,.0f} images/s")
    hvd.shutdown()


if __name__ == "__main__":
    main()
