"""Trains a small CNN on Fashion-MNIST, sharded by FSDP within a host; hosts exchange compressed gradients of shards.

torchrun --nproc-per-node 4 examples/pytorch_fsdp.py --shards 2
sirtakirun -np 4 python examples/pytorch_fsdp.py --shards 2 --backend sirtaki --local-updates auto

mesh["shard"] for fully_shard() and accelerate() are the only differences from a script that shards over all ranks.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sirtaki.torch.fsdp import accelerate

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
    loader = DataLoader(images, 500, sampler=DistributedSampler(images, shuffle=False))
    return sum(int((model(pixels).argmax(1) == labels).sum()) for pixels, labels in loader)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with FSDP inside of hosts and compression between them")
    parser.add_argument("--backend", default="gloo", help="of torch.distributed")
    parser.add_argument("--shards", type=int, default=2, help="ranks that share a model: those of a host")
    parser.add_argument("--compression", default="auto")
    parser.add_argument("--local-updates", default="1", help="steps between merges of the models, or a policy; 1: none")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    dist.init_process_group(args.backend)
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // args.shards, args.shards), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(42)
    train, test = images_of("train"), images_of("t10k")
    loader = DataLoader(train, 64, sampler=DistributedSampler(train))

    model = fully_shard(network(), mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    fsdp = accelerate(model, optimizer, mesh, compression=args.compression, local_updates=args.local_updates)

    for images, labels in itertools.islice(loader, args.steps):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    fsdp.drain()

    correct = torch.tensor(count_correct(model, test))  # every rank makes equally many forward passes
    dist.all_reduce(correct)
    if dist.get_rank() == 0:
        print(f"test accuracy {correct.item() / len(test):.2%} of {size // args.shards} replicas")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
