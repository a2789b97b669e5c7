"""Accelerated models that are copied, pickled or wrapped again, and those of programs that keep no handle."""

from __future__ import annotations

import copy
import pickle

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import sirtaki
from ranks.torch import local_cases
from ranks.torch_distributed.ddp_support import (
    TWOBIT,
    accelerated,
    branches,
    equal,
    equal_on_all,
    loss_of,
    sgd,
    start,
    train,
    with_distributed_optimizer,
    wrapped,
)
from sirtaki.torch.ddp import accelerate


def case_copies_are_averaged_by_the_process_group() -> None:
    start()
    model, optimizer, handle = accelerated(TWOBIT)
    train(model, optimizer, range(2))
    averaged = AveragedModel(model)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), averaged.module]
    train(model, optimizer, range(2, 4))
    averaged.update_parameters(model)
    for one in copies:
        train(one, sgd(one), range(2))
        equal_on_all(one)
    again = copies[0]
    of_copy = accelerate(again, compression=TWOBIT)
    train(again, sgd(again), range(2))
    equal_on_all(again)
    assert of_copy.compression_report()
    train(model, optimizer, range(4, 6))
    equal_on_all(model)
    assert handle.compression_report()


def case_a_copy_made_during_local_steps_averages_gradients() -> None:
    model = DistributedDataParallel(local_cases.net(), find_unused_parameters=True)
    optimizer = local_cases.sgd(model)
    handle = accelerate(model, optimizer, compression="none", local_updates="fixed:steps=4,delay=1")
    local_cases.train(model, optimizer, range(local_cases.STEPS))
    handle.drain()
    assert model.require_backward_grad_sync is False
    one = copy.deepcopy(model)
    local_cases.train(one, local_cases.sgd(one), range(2))
    assert not local_cases.differ(list(one.parameters()))
    assert model.require_backward_grad_sync is False


def case_a_model_that_is_wrapped_again_with_the_same_optimizer() -> None:
    for removed in (False, True):
        model, optimizer, handle = accelerated("none")
        train(model, optimizer, range(2))
        kind = type(optimizer)
        if removed:
            handle.remove()
        again = DistributedDataParallel(model.module)
        handle = accelerate(again, optimizer, compression="none")
        assert type(optimizer) is kind
        train(again, optimizer, range(2, 5))
        other, reference = with_distributed_optimizer("none")
        equal(again.module, train(other, reference))
        assert len(optimizer.compression_report()) == len(handle.compression_report()) > 0


def case_a_model_that_is_wrapped_again_makes_local_updates() -> None:
    inner = local_cases.net()
    optimizer = torch.optim.SGD((p for p in inner.parameters() if p.requires_grad), lr=0.05)
    for _ in range(2):
        model = DistributedDataParallel(inner, find_unused_parameters=True)
        handle = accelerate(model, optimizer, compression="none", local_updates="fixed:steps=4,delay=1")
        local_cases.train(model, optimizer, range(local_cases.STEPS))
        assert model.require_backward_grad_sync is False
        handle.drain()
        assert not local_cases.differ(local_cases.everything(model))


def case_local_steps_use_up_the_residuals_of_synchronous_ones() -> None:
    model = wrapped(branches)
    params = list(model.parameters())
    optimizers = [torch.optim.SGD(params[:4], lr=0.01, momentum=0.9), torch.optim.AdamW(params[4:], lr=0.001)]
    handle = accelerate(model, optimizers, compression=TWOBIT, local_updates="fixed:steps=4,delay=1")

    def train_both(steps: range) -> None:
        for step in steps:
            model.zero_grad()
            loss_of(model, step).backward()
            for optimizer in optimizers:
                optimizer.step()

    def owing() -> list[bool]:
        return [any(row["owed_norm"] > 0 for row in one.compression_report()) for one in optimizers]

    with handle.synchronous():
        train_both(range(3))
        assert owing() == [True, True], handle.compression_report()
    train_both(range(3, 63))
    assert handle.local_stats()["mode"] == "local"
    assert owing() == [False, False]
    handle.drain()
    equal_on_all(model)


def case_steps_of_a_model_without_optimizers_are_reported() -> None:
    with_optimizer = accelerated("none")
    train(*with_optimizer[:2], range(1))
    model = wrapped()
    accelerate(model, compression="none")
    train(model, sgd(model), range(1))
    before = sirtaki.metrics()["steps"]
    train(model, sgd(model), range(3))
    assert sirtaki.metrics()["steps"] == before + 3
