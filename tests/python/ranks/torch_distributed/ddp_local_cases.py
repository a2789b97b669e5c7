"""Local updates under DistributedDataParallel, whose reducer is off in local steps and on in synchronous ones."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sirtaki.torch as hvd
from ranks.error_cases import fails
from ranks.torch.local_cases import (
    STEPS,
    Make,
    adamw,
    differ,
    distributed,
    everything,
    loss_of,
    net,
    sgd,
    train,
)
from ranks.torch.optimizer_support import same_on_all_ranks
from ranks.torch_distributed.ddp_support import equal, start, train_with
from sirtaki.torch.ddp import accelerate

#: A layer of the net is never used.
UNUSED = {"find_unused_parameters": True, "bucket_cap_mb": 0.001}


def accelerated(make: Make = sgd, how: Any = 4, **options: Any) -> tuple[DistributedDataParallel, Any, Any]:
    start()
    model = DistributedDataParallel(net(), **{**UNUSED, **options})
    optimizer = make(model)
    return model, optimizer, accelerate(model, optimizer, compression="none", local_updates=how)


def case_results_are_those_of_distributed_optimizer() -> None:
    for make, how in (
        (sgd, "fixed:steps=4,delay=1"),
        (adamw, hvd.LocalUpdates("fixed:steps=3,delay=1", fragments=2)),
        (sgd, hvd.LocalUpdates("fixed:steps=4,delay=1", compression="int8")),
    ):
        for options in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
            # Broadcasts of buffers belong to the model, and DistributedOptimizer has none.
            model, optimizer, handle = accelerated(make, how, broadcast_buffers=False, **options)
            train(model, optimizer, range(STEPS))
            assert handle.local_stats()["mode"] == "local"
            assert model.require_backward_grad_sync is False
            handle.drain()
            other = net()
            reference = distributed(other, make, local_updates=how)
            train(other, reference, range(STEPS))
            reference.drain()
            equal(model.module, other)


def case_several_optimizers_of_one_model() -> None:
    start()
    how = "fixed:steps=4,delay=1"

    def made(model: nn.Module) -> list[torch.optim.Optimizer]:
        params = [p for p in model.parameters() if p.requires_grad]
        matrices = [p for p in params if p.dim() == 2]
        others = [p for p in params if p.dim() != 2]
        return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)]

    model = DistributedDataParallel(net(), **UNUSED, broadcast_buffers=False)
    optimizers = made(model)
    handle = accelerate(model, optimizers, compression="none", local_updates=how)
    train_with(model, optimizers, range(STEPS))
    assert model.require_backward_grad_sync is False
    assert differ(list(model.parameters()))
    with handle.global_model():
        same_on_all_ranks(model.parameters())
    with handle.synchronous():
        assert model.require_backward_grad_sync is True
        train_with(model, optimizers, range(3))
        same_on_all_ranks(model.parameters())
    handle.drain()
    assert not differ(everything(model))
    # A step that a rank makes by one optimizer alone keeps averages for the other.
    first, second = (one._sirtaki for one in optimizers)
    first.alone, second.alone = True, False
    assert model.require_backward_grad_sync is True
    handle.remove()
    assert model.require_backward_grad_sync is True


def case_models_drift_and_meet() -> None:
    for how in (4, "fixed:steps=6,delay=2", "diloco:steps=8"):
        model, optimizer, handle = accelerated(how=how)
        train(model, optimizer, range(STEPS + 1))
        assert differ(list(model.parameters())), how
        with handle.global_model():
            same_on_all_ranks(model.parameters())
        assert differ(list(model.parameters())), how
        handle.drain()
        assert not differ(everything(model)), how
        train(model, optimizer, range(3))
        handle.drain()
        assert not differ(everything(model)), how


def case_a_fast_network_stays_synchronous_with_auto() -> None:
    model, optimizer, handle = accelerated(how="auto:warmup=1000")
    train(model, optimizer, range(6))
    assert handle.local_stats()["mode"] != "local"
    assert model.require_backward_grad_sync is True
    assert not differ(list(model.parameters()))


def case_synchronous_steps_use_the_hook() -> None:
    model, optimizer, handle = accelerated()
    train(model, optimizer, range(6))
    with handle.synchronous():
        same_on_all_ranks(model.parameters())
        assert model.require_backward_grad_sync is True
        train(model, optimizer, range(3))
        assert all(p.grad is None or not differ([p.grad]) for p in model.parameters() if p.requires_grad)
        same_on_all_ranks(model.parameters())
    train(model, optimizer, range(60))
    assert model.require_backward_grad_sync is False
    handle.drain()
    same_on_all_ranks(model.parameters())


def case_accumulation_with_no_sync() -> None:
    model, optimizer, handle = accelerated(how=3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    for step in range(12):
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, 2 * step, dist.get_rank()).backward()
        loss_of(model, 2 * step + 1, dist.get_rank()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    assert handle.local_stats()["mode"] == "local"
    assert model.require_backward_grad_sync is False
    handle.drain()
    same_on_all_ranks(model.parameters())


def case_programs_that_switch_the_reducer_themselves() -> None:
    """Such a program sets require_backward_grad_sync before each backward, and so switches the reducer on."""
    reference, optimizer, handle = accelerated(how=3, broadcast_buffers=False)
    train(reference, optimizer, range(12))
    assert handle.local_stats()["mode"] == "local"
    handle.drain()
    model, optimizer, handle = accelerated(how=3, broadcast_buffers=False)
    for step in range(12):
        model.require_backward_grad_sync = True
        train(model, optimizer, range(step, step + 1))
    handle.drain()
    equal(model, reference)


def case_a_synchronous_step_with_gradients_of_one_rank_is_refused() -> None:
    model, optimizer, handle = accelerated(how=3)
    train(model, optimizer, range(9))
    with handle.synchronous():
        train(model, optimizer, range(2))
        with model.no_sync():
            loss_of(model, 0, dist.get_rank()).backward()
        fails(optimizer.step, RuntimeError, "leave no_sync() before the last backward()")


def case_an_optimizer_that_is_made_later_is_refused_in_local_steps() -> None:
    model, optimizer, handle = accelerated(how=3)
    train(model, optimizer, range(9))
    assert model.require_backward_grad_sync is False
    later = sgd(model)
    loss_of(model, 0, dist.get_rank()).backward()
    fails(later.step, RuntimeError, "give it to accelerate()", "remove()")
    other = nn.Linear(2, 2)
    sgd(other).step()
    handle.drain()
    handle.remove()
    train(model, later, range(3))
    assert not differ(list(model.parameters()))


def case_an_optimizer_that_goes_leaves_the_mode_as_it_is() -> None:
    """The collector of each rank decides when an optimizer goes, so that moment must change nothing."""
    model, optimizer, handle = accelerated(how=3)
    train(model, optimizer, range(9))
    handle.drain()
    part = optimizer._sirtaki
    gone = weakref.ref(optimizer)
    del optimizer, handle
    gc.collect()
    assert gone() is None
    assert part.local is None
    assert model.require_backward_grad_sync is False
    fails(sgd(model).step, RuntimeError, "give it to accelerate()")
    again = DistributedDataParallel(model.module, **UNUSED)
    made = sgd(again)
    accelerate(again, made, local_updates=3)
    train(again, made, range(2))
    assert model.require_backward_grad_sync is True
    made.drain()
    assert not differ(list(again.parameters()))


def case_parameters_without_an_optimizer() -> None:
    start()
    model = DistributedDataParallel(net(), **UNUSED)
    params = [p for p in model.parameters() if p.requires_grad]
    some = torch.optim.SGD(params[1:], lr=0.1)
    name = next(n for n, p in model.module.named_parameters() if p is params[0])
    fails(lambda: accelerate(model, some, local_updates=4), NotImplementedError, name, "all optimizers of the model")
    more = torch.optim.SGD(params[:2], lr=0.1)
    fails(lambda: accelerate(model, [some, more], local_updates=4), NotImplementedError, "two have")
    # An optimizer of frozen parameters has no part, so the others make steps alone.
    empty = torch.optim.SGD([torch.zeros(2)], lr=0.1)
    optimizer = torch.optim.SGD(params, lr=0.1)
    handle = accelerate(model, [empty, optimizer], local_updates="fixed:steps=4,delay=1")
    train(model, optimizer, range(STEPS))
    assert model.require_backward_grad_sync is False
    assert not hasattr(empty, "drain")
    handle.drain()
    assert not differ(everything(model))


def case_resumed_training_is_the_same() -> None:
    for make, how in ((sgd, "fixed:steps=4,delay=1"), (adamw, hvd.LocalUpdates("fixed:steps=3,delay=1", fragments=2))):
        model, optimizer, handle = accelerated(make, how)
        train(model, optimizer, range(9))
        handle.drain()
        kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        train(model, optimizer, range(9, STEPS))
        handle.drain()
        again, resumed, of_again = accelerated(make, how)
        again.load_state_dict(kept[0])
        resumed.load_state_dict(kept[1])
        assert again.require_backward_grad_sync is False
        train(again, resumed, range(9, STEPS))
        of_again.drain()
        equal(again, model)


def case_a_compiled_model() -> None:
    torch._dynamo.reset()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)))
    optimizer = sgd(model)
    compiled = torch.compile(model, backend="aot_eager")
    handle = accelerate(compiled, optimizer, local_updates=4)
    for step in range(STEPS):
        optimizer.zero_grad()
        compiled(torch.ones(2, 8) * (step + dist.get_rank())).square().mean().backward()
        optimizer.step()
    assert differ(list(model.parameters()))
    handle.drain()
    same_on_all_ranks(model.parameters())


def case_plain_models() -> None:
    start()
    model = net()
    optimizer = sgd(model)
    handle = accelerate(model, optimizer, local_updates="fixed:steps=4,delay=1")
    train(model, optimizer, range(STEPS))
    assert differ(list(model.parameters()))
    handle.drain()
    assert not differ(everything(model))
    assert handle.local_stats()["rounds"] > 0


def case_mistakes() -> None:
    model, optimizer, handle = accelerated()
    train(model, optimizer, range(6))

    def with_join() -> None:
        with model.join():
            train(model, optimizer, range(2))

    fails(with_join, NotImplementedError, "leave join() out")
    handle.remove()

    def with_closure() -> None:
        other, made, _ = accelerated()
        made.step(lambda: loss_of(other, 0, dist.get_rank()))

    fails(with_closure, NotImplementedError, "closure")
    group = dist.new_group([0, dist.get_world_size() - 1]) if dist.get_world_size() > 2 else None
    if group is not None and dist.get_rank() in (0, dist.get_world_size() - 1):
        fails(lambda: accelerated(process_group=group), NotImplementedError, "by all ranks")
    two = [DistributedDataParallel(net(), **UNUSED) for _ in range(2)]
    both = torch.optim.SGD([*two[0].parameters(), *two[1].parameters()], lr=0.1)
    fails(lambda: accelerate(two[0], both, local_updates=4), NotImplementedError, "an optimizer for each model")
    doubles = DistributedDataParallel(net().double(), **UNUSED)
    fails(lambda: accelerate(doubles, sgd(doubles), local_updates=4), NotImplementedError, "float32")


def case_a_removed_handle_leaves_synchronous_training() -> None:
    model, optimizer, handle = accelerated()
    train(model, optimizer, range(9))
    handle.drain()
    handle.remove()
    assert model.require_backward_grad_sync is True
    train(model, optimizer, range(3))
    assert not differ(list(model.parameters()))
