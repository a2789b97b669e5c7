"""Fashion-MNIST and a small CNN for it, shared by the demo, the trainers of other libraries and the benchmarks.

The images come from Debian's package dataset-fashion-mnist; FASHION_MNIST names another folder with the four .gz files.
Run alone, this file describes the data.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))


class FashionNet(nn.Module):
    """Two convolutions and two linear layers: 105,866 parameters with 64 hidden units."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 7 * 7, hidden)
        self.fc2 = nn.Linear(hidden, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Returns class scores for a batch of 1x28x28 images."""
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Split:
    """Images (bytes) and labels of one half of the data set."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Returns normalised images and labels at `index`."""
        images = self.images[index].to(torch.float32).div_(255.0).sub_(0.2860).div_(0.3530)
        return images.unsqueeze(1), self.labels[index]

    def batches(self, size: int, epoch: int, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields this rank's part of every batch of an epoch; `size` is the number of images per rank.

        The shuffle depends on the epoch alone, so `ranks` ranks with `size` see the same batches as one rank with
        `ranks * size`.
        """
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(epoch))
        step = size * ranks
        for begin in range(0, len(self) - step + 1, step):
            yield self.batch(order[begin + rank * size : begin + (rank + 1) * size])


def _read(name: str, header: int) -> Tensor:
    path = FOLDER / name
    if not path.exists():
        raise SystemExit(f"{path} is missing: install Debian's dataset-fashion-mnist, or set FASHION_MNIST")
    with gzip.open(path) as file:
        return torch.from_numpy(np.frombuffer(file.read(), dtype=np.uint8, offset=header).copy())


def load(train: bool) -> Split:
    """Returns the 60,000 training images, or the 10,000 test images."""
    stem = "train" if train else "t10k"
    images = _read(f"{stem}-images-idx3-ubyte.gz", header=16).view(-1, 28, 28)
    return Split(images, _read(f"{stem}-labels-idx1-ubyte.gz", header=8).long())


@torch.no_grad()
def count_correct(model: nn.Module, split: Split, rank: int = 0, ranks: int = 1) -> int:
    """Returns the number of images in this rank's share of `split` that the model classifies correctly."""
    model.eval()
    correct = 0
    for begin in range(rank * 500, len(split), ranks * 500):
        images, labels = split.batch(slice(begin, begin + 500))
        correct += int((model(images).argmax(1) == labels).sum())
    model.train()
    return correct


if __name__ == "__main__":
    for name, part in (("training", load(train=True)), ("test", load(train=False))):
        print(f"{name}: {len(part)} images, {part.labels.bincount().tolist()} in each class")
