"""Models and trainings for cases of accelerate(), with DistributedDataParallel and with DistributedOptimizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sirtaki.torch as hvd
from ranks.torch import local_cases
from sirtaki.torch.ddp import Acceleration, accelerate

SEED = int(os.environ.get("SEED", "33"))
ROWS = 6
STEPS = 5
#: Codecs with residuals and with state. Left to itself, `wire` follows the measured link, and results follow `wire`.
TWOBIT = "twobit:wire=gather"
TOPK = "group_topk:rate=0.05,wire=gather"
CODECS = ("int8:wire=gather", TWOBIT, TOPK, "powersgd:rank=2")
#: Cap of buckets, in MB, with which the model has several; DistributedDataParallel rebuilds them after the first step.
SMALL = 0.05


@cache
def start() -> None:
    """Makes the process group in the first call."""
    print(f"SEED={SEED}")
    dist.init_process_group("sirtaki")


class Branches(nn.Module):
    """Two heads over a body; `used` tells which heads a call reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.left = nn.Linear(128, 64)
        self.right = nn.Linear(128, 64)

    def forward(self, rows: Tensor, used: Sequence[str] = ("left", "right")) -> Tensor:
        hidden = self.body(rows)
        return sum(getattr(self, name)(hidden) for name in used)


def net() -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 3))


def branches() -> nn.Module:
    torch.manual_seed(SEED)
    return Branches()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Returns the rows and labels of this rank."""
    generator = torch.Generator().manual_seed(SEED * 1000 + step * 10 + dist.get_rank())
    return torch.randn(ROWS, 8, generator=generator).to(dtype), torch.randint(3, (ROWS,), generator=generator)


def loss_of(model: nn.Module, step: int) -> Tensor:
    rows, labels = batch(step, next(model.parameters()).dtype)
    return F.cross_entropy(model(rows), labels)


def step_with(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, step).backward()
    optimizer.step()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range = range(STEPS)) -> nn.Module:
    for step in steps:
        step_with(model, optimizer, step)
    return model


def wrapped(made: Callable[[], nn.Module] = net, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(made(), **{"bucket_cap_mb": SMALL, **options})


def accelerated(
    codec: str, made: Callable[[], nn.Module] = net, optimizer_of: Callable[[nn.Module], Any] = sgd, **options: Any
) -> tuple[DistributedDataParallel, Any, Acceleration]:
    model = wrapped(made, **options)
    optimizer = optimizer_of(model)
    return model, optimizer, accelerate(model, optimizer, compression=codec)


def with_distributed_optimizer(
    codec: str, made: Callable[[], nn.Module] = net, optimizer_of: Callable[[nn.Module], Any] = sgd
) -> tuple[nn.Module, Any]:
    model = made()
    optimizer = hvd.DistributedOptimizer(optimizer_of(model), model.named_parameters(), compression=codec)
    return model, optimizer


def same_as(plain: nn.Module, model: nn.Module, what: object) -> None:
    """Requires the parameters of a training without the call."""
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        # Torch divides before the sum, which rounds unless the number of ranks is a power of 2.
        assert torch.equal(p, q) if dist.get_world_size() in (2, 4) else torch.allclose(p, q, atol=1e-6), what


def equal(one: nn.Module, other: nn.Module) -> None:
    """Requires the same parameters, bit for bit."""
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), f"{name}: {(p - q).abs().max():g} apart"


def equal_on_all(model: nn.Module) -> None:
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    gathered = hvd.allgather(flat[None])
    assert torch.equal(gathered, gathered[:1].expand_as(gathered))


def train_with(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], steps: range) -> None:
    """Trains the model of local_cases with several optimizers."""
    for step in steps:
        model.zero_grad()
        local_cases.loss_of(model, step, dist.get_rank()).backward()
        for optimizer in optimizers:
            optimizer.step()
