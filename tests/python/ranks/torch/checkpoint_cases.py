"""torch.distributed.checkpoint: the residual of a rank is saved with the optimizer state and restored with it."""

from __future__ import annotations

import tempfile
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
)

import sirtaki.torch as hvd
from ranks.torch.compression_cases import TOPK, constant, mean_of_gradients, near, run_constant


@cache
def _group() -> Any:
    """Returns the process group, made on all ranks in the first call."""
    dist.init_process_group("sirtaki")
    return dist.group.WORLD


def _owed(optimizer: Any) -> torch.Tensor:
    state = optimizer.state_dict().get("sirtaki")
    return torch.zeros(64, 128) if state is None else state["owed"]["weight"]


def case_owed_comes_back_from_the_functions() -> None:
    model, optimizer = constant(TOPK)
    run_constant(model, optimizer, range(4))
    owed = _owed(optimizer)
    assert owed.abs().sum() > 0
    state = get_optimizer_state_dict(model, optimizer)
    assert list(state["state"]) == ["weight"]
    again, loaded = constant(TOPK)
    again.load_state_dict(model.state_dict())
    set_optimizer_state_dict(again, loaded, optim_state_dict=state)
    assert torch.equal(_owed(loaded), owed)
    assert not loaded.state
    # A state can be loaded in the middle of a training as well.
    run_constant(model, optimizer, range(4, 6))
    set_optimizer_state_dict(model, optimizer, optim_state_dict=state)
    assert torch.equal(_owed(optimizer), owed)
    run_constant(again, loaded, range(4, 6))
    loaded.flush()
    near(again.weight.detach(), -mean_of_gradients(model, range(6)))


def case_owed_comes_back_from_a_folder() -> None:
    _group()
    with tempfile.TemporaryDirectory() as own:
        folder = hvd.broadcast_object(own)
        model, optimizer = constant(TOPK)
        run_constant(model, optimizer, range(4))
        owed = _owed(optimizer)
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)
        again, loaded = constant(TOPK)
        of_model, of_optimizer = get_state_dict(again, loaded)
        state = {"model": of_model, "optimizer": of_optimizer}
        dcp.load(state, checkpoint_id=folder)
        again.load_state_dict(state["model"])
        set_optimizer_state_dict(again, loaded, optim_state_dict=state["optimizer"])
        hvd.barrier()
    assert torch.equal(_owed(loaded), owed)
    run_constant(again, loaded, range(4, 6))
    loaded.flush()
    near(again.weight.detach(), -mean_of_gradients(model, range(6)))


def case_a_new_optimizer_is_no_step_further() -> None:
    """torch.distributed.checkpoint calls step() to create state; one rank alone may ask for it."""
    model, _ = constant(TOPK)
    for how in ({}, {"sync": "step"}, {"op": hvd.Adasum, "compression": "none"}, {"local_updates": 2}):
        plain = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **how)
        if hvd.rank() == 0:
            state = get_optimizer_state_dict(model, optimizer)
            assert set(state["state"]["weight"]) >= {"step", "exp_avg"}
        hvd.barrier()


def case_without_anything_to_keep_the_state_is_torchs() -> None:
    model, optimizer = constant("none")
    run_constant(model, optimizer, range(1))
    assert get_optimizer_state_dict(model, optimizer)["state"] == {}
    model, optimizer = constant(TOPK)
    run_constant(model, optimizer, range(2))
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    owed = _owed(optimizer)
    state = get_optimizer_state_dict(model, optimizer, options=flat)
    assert not [key for key in state if "sirtaki" in key]
    set_optimizer_state_dict(model, optimizer, optim_state_dict=state, options=flat)
    assert torch.equal(_owed(optimizer), owed)


def case_local_updates_come_back() -> None:
    model, optimizer = constant("none", local_updates=2)
    run_constant(model, optimizer, range(4))
    optimizer.drain()
    state = get_optimizer_state_dict(model, optimizer)
    again, loaded = constant("none", local_updates=2)
    again.load_state_dict(model.state_dict())
    set_optimizer_state_dict(again, loaded, optim_state_dict=state)
    assert loaded.state_dict()["sirtaki.local"]["steps"] == 4
    run_constant(again, loaded, range(4, 6))
    loaded.drain()
    assert loaded.state_dict()["sirtaki.local"]["steps"] == 6
