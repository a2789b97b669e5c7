"""Trains a small CNN on Fashion-MNIST with DistributedDataParallel, compressed gradients and local updates.

torchrun --nproc-per-node 4 examples/ddp_fashion_mnist.py --local-updates auto
sirtakirun -np 4 --compression auto python examples/ddp_fashion_mnist.py --backend sirtaki --unchanged

accelerate() is the only difference from any other script for DistributedDataParallel; drain() belongs to local updates.
With --unchanged both are left out: over the backend sirtaki, the options of the launcher apply to any script.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fashion_mnist import FashionNet, count_correct, load
from torch.nn.parallel import DistributedDataParallel

import sirtaki
from sirtaki.torch.ddp import accelerate


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with DistributedDataParallel and compression")
    parser.add_argument("--backend", default="gloo", help="of torch.distributed")
    parser.add_argument("--compression", default="auto", help="how gradients travel; none: as they are")
    parser.add_argument("--local-updates", default="1", help="steps between merges of the models, or a policy; 1: none")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--unchanged", action="store_true", help="leave gradients to the backend")
    args = parser.parse_args()
    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(FashionNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if not args.unchanged:
        ddp = accelerate(model, optimizer, compression=args.compression, local_updates=args.local_updates)

    for _, (images, labels) in zip(range(args.steps), load(train=True).batches(64, 0, rank, size), strict=False):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    if not args.unchanged:
        ddp.drain()
    correct = torch.tensor(count_correct(model.module, load(train=False), rank, size))
    dist.all_reduce(correct)
    if rank == 0:
        seconds = "" if args.unchanged else f", steps of {sirtaki.metrics()['step_seconds']:.3f} s"
        print(f"test accuracy {correct.item() / 10_000:.2%}{seconds}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
