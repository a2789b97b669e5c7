"""Parts shared by the programs of other trainers: data, a model, and the check at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset


def batches() -> TensorDataset:
    """Returns samples of two classes that a hyperplane separates."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(320, 8, generator=draw)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def make_model() -> nn.Module:
    """Returns a model with other weights on each rank; DistributedDataParallel must make them equal."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def make_wide_model() -> nn.Module:
    """Returns a model with a matrix that codecs compress."""
    return nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))


def train_pairs(model: nn.Module, optimizer: Any, loader: Iterable[Any], no_sync: Callable[[], Any]) -> list[float]:
    """Makes a step for each two batches, in bfloat16 and with clipped gradients; returns the losses of the batches.

    `no_sync()` is the context of the first batch of each step, whose gradients stay on their rank.
    """
    losses = []
    for index, (inputs, labels) in enumerate(loader):
        steps = index % 2 == 1
        context: AbstractContextManager[None] = nullcontext() if steps else no_sync()
        with context:
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs), labels)
            (loss / 2).backward()
        losses.append(loss.item())
        if steps:
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
    return losses


def require_equal(model: nn.Module) -> None:
    """Requires the same parameters on all ranks."""
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    gathered = [torch.empty_like(flat) for _ in range(2)]
    torch.distributed.all_gather(gathered, flat)
    assert torch.equal(*gathered), "ranks have other parameters"


def require_state(state: dict[str, Any], local: bool) -> None:
    """Requires residuals of all ranks, or the state of local updates, in the state of an optimizer in a checkpoint."""
    assert ("sirtaki.local" in state) == local, state.keys()
    assert local or (state["sirtaki"]["rank"] == -1 and state["sirtaki"]["owed"]), state.get("sirtaki")


def check(model: nn.Module, losses: list[float]) -> str:
    """Checks the backend, that all ranks have equal parameters, and that the loss fell; rank 0 prints the result."""
    import sirtaki

    distributed = torch.distributed
    assert distributed.get_backend() == "sirtaki", distributed.get_backend()
    assert sirtaki.size() == distributed.get_world_size() == 2
    require_equal(model)
    assert losses[-1] < losses[0], losses
    moved = int(sirtaki.stats()["ops.completed"])
    assert moved > 30, f"only {moved} operations went over Sirtaki"
    text = f"TRAINED loss {losses[0]:.3f} to {losses[-1]:.3f}, {moved} operations over sirtaki"
    if distributed.get_rank() == 0:
        print(text, flush=True)
    return text
