"""Models that the benchmarks train, and their data. Runs inside worker processes.

Thread: the main thread of the worker. Data come from the Debian packages dataset-fashion-mnist and fortunes. Batches
follow from a seed, so that all methods see the same batches in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.fashion_mnist import FashionNet, count_correct, load

FORTUNES = Path("/usr/share/games/fortunes")
#: Images of a rank that sample_loss() reads; for text it reads four times as many bytes, in windows of 64.
SAMPLE = 512


class Task(Protocol):
    """A model with its data, on one rank."""

    model: nn.Module

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields batches of this rank without end."""

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean cross-entropy of the model on a batch."""

    def quality(self) -> float:
        """Part of this rank in the figure of merit; the sum over ranks is the figure."""

    def sample_loss(self) -> float:
        """Loss of the model on the part of this rank in a sample of the training data, the same in every call."""


class ConvNet(nn.Module):
    """Five convolutions with batch norm and one small linear layer: nearly all of 135,674 parameters in kernels."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 16, 32, 64, 64, 128)
        blocks: list[nn.Module] = []
        for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
            blocks += [nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False), nn.BatchNorm2d(fan_out), nn.ReLU()]
            if i in (0, 1, 3):
                blocks.append(nn.MaxPool2d(2))
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores for a batch of 1x28x28 images."""
        return self.head(self.body(images).mean((2, 3)))


class Transformer(nn.Module):
    """Two layers of attention of width 96 over 64 bytes of text: 278,976 parameters."""

    WIDTH, LENGTH = 96, 64

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, self.WIDTH)
        self.position = nn.Parameter(torch.zeros(self.LENGTH, self.WIDTH))
        layer = nn.TransformerEncoderLayer(
            self.WIDTH, 4, 4 * self.WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(self.WIDTH, 256, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(self.LENGTH), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of the byte that follows each byte."""
        return self.head(self.body(self.embedding(text) + self.position, mask=self.mask, is_causal=True))


class Perceptron(nn.Module):
    """Three linear layers over the pixels: 269,322 parameters."""

    def __init__(self) -> None:
        super().__init__()
        widths = (784, 256, 256)
        hidden = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        self.body = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Class scores for a batch of 1x28x28 images."""
        return self.body(images)


class Images:
    """Fashion-MNIST; quality: number of test images that are classified correctly."""

    def __init__(self, model: nn.Module, batch: int, rank: int, ranks: int, unseen: int) -> None:
        self.model = model
        self._batch, self._rank, self._ranks, self._shards = batch, rank, ranks, ranks + unseen
        self._train, self._test = load(train=True), load(train=False)

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """See Task."""
        epoch = 0
        while True:
            yield from self._train.batches(self._batch, 1000 * seed + epoch, self._rank, self._shards)
            epoch += 1

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """See Task."""
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def quality(self) -> float:
        """See Task."""
        return count_correct(self.model, self._test, self._rank, self._ranks) / len(self._test)

    @torch.no_grad()
    def sample_loss(self) -> float:
        """See Task."""
        order = torch.randperm(len(self._train), generator=torch.Generator().manual_seed(0))
        mine = order[self._rank * SAMPLE : (self._rank + 1) * SAMPLE].split(128)
        return sum(float(self.loss(self._train.batch(part))) for part in mine) / len(mine)


class Text:
    """Text of the Debian package fortunes byte by byte; quality: minus the loss on text outside the training data."""

    def __init__(self, model: Transformer, batch: int, rank: int, ranks: int) -> None:
        self.model = model
        self._batch, self._rank, self._ranks = batch, rank, ranks
        texts = [path.read_bytes() for path in sorted(FORTUNES.iterdir()) if path.suffix == "" and path.is_file()]
        data = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)
        held_out = len(data) // 20
        self._train, self._test = data[:-held_out], data[-held_out:]

    def _cut(self, data: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        windows = data[begins.unsqueeze(1) + torch.arange(Transformer.LENGTH + 1)].long()
        return windows[:, :-1], windows[:, 1:]

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """See Task."""
        generator = torch.Generator().manual_seed(1000 * seed + self._rank)
        last = len(self._train) - Transformer.LENGTH - 1
        while True:
            yield self._cut(self._train, torch.randint(last, (self._batch,), generator=generator))

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """See Task."""
        return F.cross_entropy(self.model(batch[0]).flatten(0, 1), batch[1].flatten())

    @torch.no_grad()
    def quality(self) -> float:
        """See Task."""
        begins = torch.arange(self._rank, len(self._test) // Transformer.LENGTH - 1, 4 * self._ranks)
        losses = [self.loss(self._cut(self._test, part * Transformer.LENGTH)) * len(part) for part in begins.split(64)]
        return -float(sum(losses)) / len(begins) / self._ranks

    @torch.no_grad()
    def sample_loss(self) -> float:
        """See Task."""
        last = len(self._train) - Transformer.LENGTH - 1
        begins = torch.randint(last, (self._ranks, SAMPLE // 16), generator=torch.Generator().manual_seed(0))
        mine = begins[self._rank].split(16)
        return sum(float(self.loss(self._cut(self._train, part))) for part in mine) / len(mine)


def make_model(net: str) -> Transformer | FashionNet | ConvNet | Perceptron:
    """Makes a model by name, with weights that follow from the seed of torch."""
    if net == "transformer":
        return Transformer()
    if net == "perceptron":
        return Perceptron()
    # "cnn": 206,922 parameters, 97 % of them in one matrix.
    return FashionNet(hidden=128) if net == "cnn" else ConvNet()


def make_task(net: str, batch: int, rank: int, ranks: int, unseen: int = 0) -> Task:
    """Makes a task by name, with the model of make_model().

    `unseen`: number of additional shards of images that no rank trains on; each rank draws windows of text by itself.
    """
    model = make_model(net)
    if isinstance(model, Transformer):
        return Text(model, batch, rank, ranks)
    return Images(model, batch, rank, ranks, unseen)
