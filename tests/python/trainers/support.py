"""Parts shared by the programs of other trainers: data, a model, and the check at the end."""

from __future__ import annotations

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


def check(model: nn.Module, losses: list[float]) -> str:
    """Checks the backend, that all ranks have equal parameters, and that the loss fell; rank 0 prints the result."""
    import sirtaki

    distributed = torch.distributed
    assert distributed.get_backend() == "sirtaki", distributed.get_backend()
    assert sirtaki.size() == distributed.get_world_size() == 2
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    gathered = [torch.empty_like(flat) for _ in range(2)]
    distributed.all_gather(gathered, flat)
    assert torch.equal(*gathered), "ranks have other parameters"
    assert losses[-1] < losses[0], losses
    moved = int(sirtaki.stats()["ops.completed"])
    assert moved > 30, f"only {moved} operations went over Sirtaki"
    text = f"TRAINED loss {losses[0]:.3f} to {losses[-1]:.3f}, {moved} operations over sirtaki"
    if distributed.get_rank() == 0:
        print(text, flush=True)
    return text
