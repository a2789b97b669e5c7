"""Gradients of sharded models: accelerate() of sirtaki.torch.fsdp on two replicas of two shards."""

from __future__ import annotations

import torch
from torch import nn

import sirtaki.torch as hvd
from ranks.torch_distributed.fsdp_support import (
    STEPS,
    TWOBIT,
    accelerated,
    adamw,
    equal_between_replicas,
    local,
    loss_of,
    mesh,
    same_as,
    sgd,
    sharded,
    shards_of,
    step_with,
    train,
    train_alone,
)
from sirtaki.torch.fsdp import accelerate


def case_dense_gradients_are_those_of_one_process() -> None:
    for make in (sgd, adamw):
        model, optimizer, handle = accelerated(make=make)
        train(model, optimizer, range(STEPS))
        equal_between_replicas(model)
        same_as(model, train_alone(range(STEPS), make))
        assert all(row["codec"] == "none" for row in handle.compression_report())
        # A shard without elements is in no stream: the last layer has a single row.
        assert len(handle.compression_report()) == (6 if mesh().get_local_rank("shard") == 0 else 4)


def case_backward_returns_averages_for_clipping() -> None:
    model, optimizer, _ = accelerated()
    train(model, optimizer, range(STEPS), clip=0.1)
    equal_between_replicas(model)
    same_as(model, train_alone(range(STEPS), clip=0.1))


def case_gradients_travel_during_backward() -> None:
    model, optimizer, _ = accelerated()
    train(model, optimizer, range(2))
    seen = []
    last = next(p for p in model[0].parameters())
    last.register_post_accumulate_grad_hook(lambda _: seen.append(sum(map(bool, optimizer._sirtaki._submitted))))
    step_with(model, optimizer, 2)
    assert seen[0] >= len(optimizer._sirtaki.params) // 2, seen


def case_accumulation() -> None:
    model, optimizer, _ = accelerated()
    plain = sharded()
    reference = sgd(plain)
    accelerate(plain, reference, mesh(), compression="none")
    for step in range(STEPS):
        # Inside FSDP nothing is combined before the last backward.
        optimizer.zero_grad()
        model.set_requires_gradient_sync(False)
        loss_of(model, 2 * step).backward()
        model.set_requires_gradient_sync(True)
        loss_of(model, 2 * step + 1).backward()
        optimizer.step()
        # Shards are combined after each backward, between replicas after the last.
        reference.zero_grad()
        with reference.no_sync():
            loss_of(plain, 2 * step).backward()
        loss_of(plain, 2 * step + 1).backward()
        reference.step()
    equal_between_replicas(model)
    for mine, other in zip(shards_of(model), shards_of(plain), strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-6)


def case_residuals_hold_what_is_not_sent() -> None:
    model, optimizer, handle = accelerated(TWOBIT, make=lambda m: torch.optim.SGD(m.parameters(), lr=1.0))
    plain = sharded()
    start = shards_of(model)
    owed = [torch.zeros_like(shard) for shard in start]
    sent = [torch.zeros_like(shard) for shard in start]
    ranks = optimizer._sirtaki.options.process_set
    names = [name for name, _ in model.named_parameters()]
    for step in range(STEPS):
        plain.load_state_dict(model.state_dict())
        plain.zero_grad()
        loss_of(plain, step).backward()
        step_with(model, optimizer, step)
        for i, p in enumerate(plain.parameters()):
            if p.grad is not None and local(p.grad).numel() > 0:
                sent[i] += hvd.allreduce(local(p.grad), name=f"reference.{i}", process_set=ranks)
    equal_between_replicas(model)
    state = handle.state_dict()["sirtaki"]["owed"]
    assert state
    for i, name in enumerate(names):
        if owed[i].numel() > 0:
            mine = state.get(name, torch.zeros_like(owed[i]))
            owed[i] = hvd.allreduce(mine, name=f"owed.{i}", process_set=ranks)
    # The way of the model and the mean of the residuals are the sum of the mean gradients.
    for i, (begin, end) in enumerate(zip(start, shards_of(model), strict=True)):
        torch.testing.assert_close(begin - end + owed[i], sent[i], rtol=1e-3, atol=1e-5)


def case_ranks_hold_their_shards_only() -> None:
    model, optimizer, handle = accelerated("int8:wire=gather")
    train(model, optimizer, range(2))
    reducer = optimizer._sirtaki
    for shard, param in zip(reducer.params, [p for p in model.parameters() if p.requires_grad], strict=False):
        assert shard.untyped_storage().data_ptr() == local(param).untyped_storage().data_ptr()
    whole = sum(p.numel() for p in model.parameters() if p.requires_grad)
    held = sum(row["numel"] for row in handle.compression_report())
    assert held <= 0.6 * whole, (held, whole)
    residuals = sum(value.numel() for value in handle.state_dict()["sirtaki"]["owed"].values())
    assert residuals <= held


def case_parameters_of_one_replica_only() -> None:
    model = sharded(nn.Sequential(nn.Linear(8, 4), nn.Linear(8, 4)))
    start = shards_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accelerate(model, optimizer, mesh(), compression="none")
    mine = model[mesh().get_local_rank("replicate")]
    for _ in range(2):
        optimizer.zero_grad()
        mine(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    equal_between_replicas(model)
    # The gradient of each parameter is 2 on one replica and 0 on the other.
    for before, after in zip(start, shards_of(model), strict=True):
        torch.testing.assert_close(before - after, torch.full_like(before, 2.0))


def case_replicas_begin_with_the_first() -> None:
    torch.manual_seed(mesh().get_local_rank("replicate"))
    model = sharded(nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5)))
    model[1].running_mean.fill_(float(torch.distributed.get_rank()))
    accelerate(model, sgd(model), mesh())
    equal_between_replicas(model)
    assert model[1].running_mean[0] == mesh().get_local_rank("shard")
