"""Trains a small CNN on Fashion-MNIST with DistributedDataParallel and compressed gradients, over Gloo or any backend.

torchrun --nproc-per-node 4 examples/pytorch_ddp_compressed.py
sirtakirun -np 4 python examples/pytorch_ddp_compressed.py --backend sirtaki --local-updates auto

accelerate() is the only difference from any other script for DistributedDataParallel; drain() belongs to local updates.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fashion_mnist import FashionNet, count_correct, load
from torch.nn.parallel import DistributedDataParallel

from sirtaki.torch.ddp import accelerate


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with DistributedDataParallel and compression")
    parser.add_argument("--backend", default="gloo", help="of torch.distributed")
    parser.add_argument("--compression", default="auto")
    parser.add_argument("--local-updates", default="1", help="steps between merges of the models, or a policy; 1: none")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    dist.init_process_group(args.backend)
    torch.manual_seed(42)

    model = DistributedDataParallel(FashionNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ddp = accelerate(model, optimizer, compression=args.compression, local_updates=args.local_updates)

    batches = load(train=True).batches(64, 0, dist.get_rank(), dist.get_world_size())
    for _, (images, labels) in zip(range(args.steps), batches, strict=False):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    ddp.drain()

    test = load(train=False)
    correct = torch.tensor(count_correct(model.module, test, dist.get_rank(), dist.get_world_size()))
    dist.all_reduce(correct)
    if dist.get_rank() == 0:
        rows = ddp.compression_report()
        sent = sum(row["wire_bytes"] for row in rows) / sum(row["held_bytes"] for row in rows)
        print(f"test accuracy {correct.item() / len(test):.2%}, {sent:.0%} of the bytes of dense gradients")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
