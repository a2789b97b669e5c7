"""Models and training loops for the cases of sync="forward"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sirtaki.torch as hvd
from ranks.torch.optimizer_support import same_on_all_ranks

MODES = ("backward", "step", "forward")
STEPS = 5
Make = Callable[[nn.Module], torch.optim.Optimizer]


class Tied(nn.Module):
    """Tied embedding and output, attention whose out_proj is never called, an unused layer and one used at times."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.sometimes = nn.Linear(8, 8)
        self.never = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, words: Tensor, sometimes: bool = False) -> Tensor:
        x = self.embed(words)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        if sometimes:
            x = self.sometimes(x)
        return self.head(self.norm(x) * self.scale)


def tied() -> Tied:
    torch.manual_seed(5)
    return Tied()


def words(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    return torch.randint(0, 11, (3, 6), generator=generator)


def loss_of(model: nn.Module, step: int, sometimes: bool = False) -> Tensor:
    given = words(step)
    return F.cross_entropy(model(given[:, :-1], sometimes).flatten(0, 1), given[:, 1:].flatten())


def distributed(model: nn.Module, make: Make, sync: str, **options: Any) -> Any:
    return hvd.DistributedOptimizer(make(model), model.named_parameters(), sync=sync, **options)


def plain_training(optimizer: Any, model: nn.Module, steps: Iterable[int] = range(STEPS)) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def trained(
    sync: str, make: Make, step: Callable[[Any, nn.Module, int], None], steps: int = 4, **options: Any
) -> Iterable[Tensor]:
    """Returns the parameters after `steps` calls of step(optimizer, model, number), each after a zero_grad()."""
    model = tied()
    optimizer = distributed(model, make, sync, **options)
    for number in range(steps):
        optimizer.zero_grad()
        step(optimizer, model, number)
    optimizer.wait()
    return model.parameters()


def same_bits(train: Callable[[str], Iterable[Tensor]]) -> None:
    """Requires that `train(sync)` gives the same bits in every mode and on every rank."""
    results = [[t.detach().clone() for t in train(sync)] for sync in MODES]
    same_on_all_ranks(results[0])
    for sync, result in zip(MODES[1:], results[1:], strict=True):
        for i, (expected, actual) in enumerate(zip(results[0], result, strict=True)):
            assert torch.equal(expected, actual), (sync, i, (expected - actual).abs().max())


def state_of(optimizer: Any) -> list[Tensor]:
    """Returns the tensors of the optimizer state, in order."""
    state = optimizer.state_dict()["state"]
    return [v for key in sorted(state) for _, v in sorted(state[key].items()) if isinstance(v, Tensor)]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
