"""Local updates of sharded models: each rank merges its shards with their replicas."""

from __future__ import annotations

import copy
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import sirtaki.torch as hvd
from ranks.torch_distributed.fsdp_support import (
    TWOBIT,
    accelerated,
    adamw,
    equal_between_replicas,
    local,
    loss_of,
    net,
    same_as,
    shards_of,
    train,
    train_alone,
)

EVERY_3 = hvd.LocalUpdates("fixed:steps=3,delay=0,warmup=0", outer="none", optimizer_state=0)


def plain_sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)


def case_a_merge_is_the_mean_of_replicas() -> None:
    model, optimizer, _ = accelerated(make=plain_sgd, local_updates=EVERY_3)
    train(model, optimizer, range(2))
    both = hvd.allgather(shards_of(model)[0].view(1, -1), process_set=optimizer._sirtaki.options.process_set)
    assert not torch.equal(both[0], both[1])
    train(model, optimizer, range(2, 3))
    equal_between_replicas(model)
    mean = net()
    # The first gradients are averaged, because the ranks start local updates after them.
    alone = [train_alone(range(3), plain_sgd, ranks, together=1) for ranks in ((0, 1), (2, 3))]
    with torch.no_grad():
        for p, one, other in zip(mean.parameters(), *(a.parameters() for a in alone), strict=True):
            p.copy_((one + other) / 2)
    same_as(model, mean)


def case_policies_and_states_of_optimizers() -> None:
    for policy in ("auto", "4", hvd.LocalUpdates("fixed:steps=2,delay=1", compression="int8", optimizer_state=1)):
        model, optimizer, handle = accelerated(make=adamw, local_updates=policy)
        for step in range(12):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            handle.report_loss(loss)
            optimizer.step()
        handle.drain()
        equal_between_replicas(model)
        assert handle.local_stats()["alarms"] is not None


def case_memory_is_that_of_shards() -> None:
    model, optimizer, handle = accelerated(make=plain_sgd, local_updates=EVERY_3)
    train(model, optimizer, range(6))
    shard_bytes = 4 * sum(local(p).numel() for p in model.parameters() if p.requires_grad)
    stats = handle.local_stats()
    assert stats["anchor_bytes"] == shard_bytes, (stats["anchor_bytes"], shard_bytes)
    # The snapshot and the sum of fragments in flight.
    assert stats["scratch_bytes"] <= 3 * shard_bytes, (stats["scratch_bytes"], shard_bytes)
    handle.drain()


def case_the_agreed_model_and_synchronous_steps() -> None:
    model, optimizer, handle = accelerated(make=plain_sgd, local_updates=EVERY_3)
    train(model, optimizer, range(4))
    mine = shards_of(model)
    with handle.global_model():
        equal_between_replicas(model)
    for before, after in zip(mine, shards_of(model), strict=True):
        assert torch.equal(before, after)
    with handle.synchronous():
        train(model, optimizer, range(4, 6))
        equal_between_replicas(model)
    handle.remove()


def case_a_shard_that_is_not_finite_is_replaced() -> None:
    model, optimizer, handle = accelerated(make=adamw, local_updates=EVERY_3)
    train(model, optimizer, range(4))
    if dist.get_rank() == 3:
        with torch.no_grad():
            for p in optimizer.param_groups[0]["params"]:
                local(p).fill_(float("nan"))
    # The ranks of a replica share a model, so the gradients of rank 2 are not finite either.
    train(model, optimizer, range(4, 9))
    handle.drain()
    equal_between_replicas(model)
    for shard in shards_of(model):
        assert torch.isfinite(shard).all()


def case_own_state_continues_bit_for_bit() -> None:
    model, optimizer, handle = accelerated(make=adamw, local_updates=EVERY_3)
    train(model, optimizer, range(4))
    handle.drain()
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, range(4, 9))
    again, fresh, other = accelerated(make=adamw, local_updates=EVERY_3)
    again.load_state_dict(weights)
    fresh.load_state_dict(state)
    train(again, fresh, range(4, 9))
    for one, two in zip(shards_of(model), shards_of(again), strict=True):
        assert torch.equal(one, two)
    handle.drain()
    other.drain()


def case_torch_distributed_checkpoint() -> None:
    for how in ({"compression": TWOBIT}, {"local_updates": EVERY_3}):
        model, optimizer, handle = accelerated(make=adamw, **how)
        train(model, optimizer, range(4))
        handle.drain()
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
        dist.broadcast_object_list(folder)
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
        again, fresh, other = accelerated(make=adamw, **how)
        weights, state = get_state_dict(again, fresh)
        loaded = {"model": weights, "optimizer": state}
        dcp.load(loaded, checkpoint_id=folder[0])
        set_state_dict(again, fresh, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder[0])
        for one, two in zip(shards_of(model), shards_of(again), strict=True):
            assert torch.equal(one, two)
        for each, its in ((model, optimizer), (again, fresh)):
            train(each, its, range(4, 9))
        assert other.local_stats().get("steps") == handle.local_stats().get("steps")
        handle.drain()
        other.drain()
        equal_between_replicas(again)
        if "compression" in how:
            # Local updates go on with the moments of one replica, which is all that torch saves.
            for one, two in zip(shards_of(model), shards_of(again), strict=True):
                assert torch.equal(one, two)
