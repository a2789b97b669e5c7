"""Trains a small CNN on Fashion-MNIST, sharded by FSDP within a host; hosts exchange compressed gradients of shards.

torchrun --nproc-per-node 4 examples/fsdp_fashion_mnist.py --shards 2
sirtakirun -np 4 python examples/fsdp_fashion_mnist.py --shards 2 --backend sirtaki --local-updates auto

mesh["shard"] for fully_shard() and accelerate() are the only differences from a script that shards over all ranks;
drain() belongs to local updates.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fashion_mnist import FashionNet, count_correct, load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import sirtaki
from sirtaki.torch.fsdp import accelerate


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with FSDP inside of hosts and compression between them")
    parser.add_argument("--backend", default="gloo", help="of torch.distributed")
    parser.add_argument("--shards", type=int, default=2, help="ranks that share a model: those of a host")
    parser.add_argument("--compression", default="auto", help="how gradients travel; none: as they are")
    parser.add_argument("--local-updates", default="1", help="steps between merges of the models, or a policy; 1: none")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // args.shards, args.shards), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(42)
    model = fully_shard(FashionNet(), mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    fsdp = accelerate(model, optimizer, mesh, compression=args.compression, local_updates=args.local_updates)

    for _, (images, labels) in zip(range(args.steps), load(train=True).batches(64, 0, rank, size), strict=False):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    fsdp.drain()
    correct = torch.tensor(count_correct(model, load(train=False), rank, size))
    dist.all_reduce(correct)
    if rank == 0:
        accuracy, seconds = correct.item() / 10_000, sirtaki.metrics()["step_seconds"]
        print(f"test accuracy {accuracy:.2%} of {size // args.shards} replicas, steps of {seconds:.3f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
