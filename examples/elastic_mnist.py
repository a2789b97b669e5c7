"""Trains a small CNN on Fashion-MNIST and goes on when ranks are lost and come back: a script to copy.

sirtakirun -np 4 --elastic 2:4 python examples/elastic_mnist.py
kill -9 PID                                   # in another terminal: any rank, while more than two are left

The numbered comments mark all differences from a script whose ranks must all survive (pytorch_mnist.py).
"""

from __future__ import annotations

import argparse
import gzip
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


@hvd.elastic.run  # 1. called again when a rank is lost, from the last commit, and when one comes back
def train(state: hvd.elastic.TorchState, images: TensorDataset, args: argparse.Namespace) -> None:
    model, optimizer, sampler = state.model, state.optimizer, state.sampler
    print(f"rank {hvd.rank()} of {hvd.size()} is process {os.getpid()}; step {state.step}", flush=True)
    while state.epoch < args.epochs:  # 2. the state tells where to begin
        for batch, (pixels, labels) in enumerate(DataLoader(images, args.batch_size, sampler=sampler)):
            optimizer.zero_grad()
            F.cross_entropy(model(pixels), labels).backward()
            optimizer.step()
            sampler.record_batch(batch, len(labels))
            state.step += 1
            if state.step % args.commit_every == 0:
                state.commit()  # 3. a loss costs the steps since then, and new ranks come here
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

    torch.manual_seed(42)
    images, test = images_of("train"), images_of("t10k")  # before init(): the others wait behind it for a new rank
    hvd.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0125 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(images)
    # 4. everything that all ranks share and a loss must not spoil
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0)

    def keep_rate_per_rank() -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.0125 * hvd.size()

    state.register_reset_callbacks([keep_rate_per_rank])  # 5. what depends on the number of ranks
    train(state, images, args)
    correct = hvd.allreduce(torch.tensor(count_correct(model, test)), name="correct", op=hvd.Sum).item()
    if hvd.rank() == 0:
        print(f"{state.step} steps, test accuracy {correct / len(test):.2%}, {hvd.size()} ranks at the end")
    hvd.shutdown()


if __name__ == "__main__":
    main()
