"""Sharded models and their trainings, on a mesh of two replicas with two shards, and the same in one process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import sirtaki.torch as hvd
from sirtaki.torch.fsdp import Acceleration, accelerate

SEED = int(os.environ.get("SEED", "33"))
ROWS = 6
STEPS = 5
TWOBIT = "twobit:wire=gather"


@cache
def mesh() -> DeviceMesh:
    """Returns the mesh; makes the process group in the first call."""
    print(f"SEED={SEED}")
    dist.init_process_group("sirtaki")
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def net() -> nn.Module:
    """Returns a model with rows that two shards cannot share evenly, with a single row, and with a frozen layer."""
    torch.manual_seed(SEED)
    model = nn.Sequential(
        nn.Linear(8, 129), nn.Tanh(), nn.Linear(129, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    model[4].requires_grad_(False)
    return model


def sharded(model: nn.Module | None = None) -> nn.Module:
    """Returns a model with a group of shards for each of its layers."""
    model = net() if model is None else model
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh()["shard"])
    return fully_shard(model, mesh=mesh()["shard"])


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def accelerated(compression: Any = "none", make: Any = sgd, **how: Any) -> tuple[nn.Module, Any, Acceleration]:
    model = sharded()
    optimizer = make(model)
    return model, optimizer, accelerate(model, optimizer, mesh(), compression=compression, **how)


def batch(step: int, rank: int | None = None) -> tuple[Tensor, Tensor]:
    """Returns the rows and targets of a rank, of this one by default."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(SEED * 1000 + step * 10 + rank)
    return torch.randn(ROWS, 8, generator=generator), torch.randn(ROWS, 1, generator=generator)


def loss_of(model: nn.Module, step: int, rank: int | None = None) -> Tensor:
    rows, targets = batch(step, rank)
    return F.mse_loss(model(rows), targets)


def step_with(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, clip: float = 0.0) -> None:
    optimizer.zero_grad()
    loss_of(model, step).backward()
    if clip > 0:
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], clip)
    optimizer.step()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int], clip: float = 0.0) -> None:
    for step in steps:
        step_with(model, optimizer, step, clip)


def train_alone(
    steps: Iterable[int], make: Any = sgd, ranks: Iterable[int] = range(4), clip: float = 0.0, together: int = 0
) -> nn.Module:
    """Trains the whole model in this process on the batches of some ranks; of all in the first steps."""
    model, some = net(), list(ranks)
    optimizer = make(model)
    for step in steps:
        optimizer.zero_grad()
        ranks = range(4) if step < together else some
        (sum(loss_of(model, step, rank) for rank in ranks) / len(ranks)).backward()
        if clip > 0:
            nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], clip)
        optimizer.step()
    return model


def local(tensor: Any) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(model: nn.Module) -> list[Tensor]:
    """Returns the whole parameters of a sharded model. Collective within the ranks of a replica."""
    return [p.detach().full_tensor() for p in model.parameters()]


def same_as(model: nn.Module, plain: nn.Module) -> None:
    """Requires the parameters of a plain model, but for the order of sums."""
    for mine, other in zip(whole(model), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other.detach(), rtol=2e-4, atol=2e-6)


def shards_of(model: nn.Module) -> list[Tensor]:
    return [local(p.detach()).clone() for p in model.parameters()]


def equal_between_replicas(model: nn.Module) -> None:
    """Requires the same bits on the ranks that hold the same shards. Collective."""
    mine = torch.cat([shard.flatten() for shard in shards_of(model)])
    ranks = hvd.ProcessSet([dist.get_rank() % 2, dist.get_rank() % 2 + 2])
    both = hvd.allgather(mine.view(1, -1), process_set=ranks)
    assert torch.equal(both[0], both[1])
