"""Trains a small CNN on Fashion-MNIST with DistributedDataParallel: alone, or with compression and local updates.

sirtakirun -np 4 python examples/pytorch_ddp.py                                   # backend sirtaki, else unchanged
torchrun --nproc-per-node 4 examples/pytorch_ddp.py --backend gloo --compression auto
torchrun --nproc-per-node 4 examples/pytorch_ddp.py --backend gloo                # torch alone, for a comparison

The numbered comments mark all differences from any other script for DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import sirtaki.torch.ddp

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
    loader = DataLoader(images, 500, sampler=range(dist.get_rank(), len(images), dist.get_world_size()))
    return sum(int((model(pixels).argmax(1) == labels).sum()) for pixels, labels in loader)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with DistributedDataParallel")
    parser.add_argument("--backend", default="sirtaki", help="of torch.distributed")
    parser.add_argument("--compression", help="of gradients, such as auto or int8; by default DDP sends them itself")
    parser.add_argument("--local-updates", help="steps between merges of the models, or a policy, such as auto")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--steps", type=int, help="stop each epoch after so many steps")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    dist.init_process_group(args.backend)  # 1. "sirtaki", or the backend as it was
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    train, test = images_of("train"), images_of("t10k")
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch_size, sampler=sampler)

    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0125 * size, momentum=0.9)
    handle = None
    if args.compression or args.local_updates:  # 2. one line for compression and local updates
        settings = {"compression": args.compression, "local_updates": args.local_updates}
        handle = sirtaki.torch.ddp.accelerate(model, optimizer, **settings)

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
        if handle is not None:
            handle.drain()  # 3. for local updates: before an evaluation, a checkpoint and the end
        results = torch.tensor([sum(losses) / len(losses) / size, count_correct(model.module, test)])
        dist.all_reduce(results)
        if rank == 0:
            loss, correct = results.tolist()
            rate = len(losses) * args.batch_size * size / seconds
            print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {correct / len(test):.2%}, {rate:,.0f} images/s")
    if handle is not None and rank == 0:
        rows = handle.compression_report()
        sent = sum(row["wire_bytes"] for row in rows) / sum(row["held_bytes"] for row in rows)
        print(f"{sent:.0%} of the bytes of dense gradients")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
