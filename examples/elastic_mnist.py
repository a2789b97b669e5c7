"""Trains a small CNN on Fashion-MNIST and goes on without ranks that are lost: a script to copy.

sirtakirun -np 4 --elastic 2: python examples/elastic_mnist.py
kill -9 PID                                   # in another terminal: any rank, while more than two are left

The numbered comments mark all differences from a script whose ranks must all survive (pytorch_mnist.py).
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.nn.functional as F
from fashion_mnist import FashionNet, count_correct, load
from torch.utils.data import DataLoader

import sirtaki.torch as hvd


@hvd.elastic.run  # 1. called again, from the last commit, when a rank is lost
def train(state: hvd.elastic.TorchState, args: argparse.Namespace) -> None:
    images = load(train=True)
    model, optimizer, sampler = state.model, state.optimizer, state.sampler
    print(f"rank {hvd.rank()} of {hvd.size()} is process {os.getpid()}; step {state.step}", flush=True)
    while state.epoch < args.epochs:  # 2. the state tells where to begin
        for batch, indices in enumerate(DataLoader(range(len(images)), args.batch_size, sampler=sampler)):
            pixels, labels = images.batch(indices)
            optimizer.zero_grad()
            F.cross_entropy(model(pixels), labels).backward()
            optimizer.step()
            sampler.record_batch(batch, len(indices))
            state.step += 1
            if state.step % args.commit_every == 0:
                state.commit()  # 3. a loss costs the steps since then
            if state.step == args.steps:
                return
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        state.commit()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST on ranks that may be lost")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps; 0: at the end of the epochs")
    parser.add_argument("--commit-every", type=int, default=1, help="steps between commits")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(42)
    model = FashionNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0125 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(load(train=True))
    # 4. everything that all ranks share and a loss must not spoil
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0)

    def keep_rate_per_rank() -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.0125 * hvd.size()

    state.register_reset_callbacks([keep_rate_per_rank])  # 5. what depends on the number of ranks
    train(state, args)
    test = load(train=False)
    correct = torch.tensor(count_correct(model, test, hvd.rank(), hvd.size()))
    correct = hvd.allreduce(correct, name="correct", op=hvd.Sum).item()
    if hvd.rank() == 0:
        print(f"{state.step} steps, test accuracy {correct / len(test):.2%}, {hvd.size()} ranks at the end")
    hvd.shutdown()


if __name__ == "__main__":
    main()
