"""DistributedDataParallel of a program that does not know Sirtaki, with --local-updates fixed:steps=4,delay=1."""

from __future__ import annotations

import copy
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ranks.error_cases import fails
from ranks.torch.local_cases import STEPS, differ, everything, loss_of, net, sgd, train
from ranks.torch_distributed.ddp_support import equal, start, train_with

UNUSED = {"find_unused_parameters": True}


def case_an_unchanged_program_makes_local_updates() -> None:
    start()
    model = DistributedDataParallel(net(), **UNUSED)
    optimizer = sgd(model)
    train(model, optimizer, range(STEPS + 1))
    assert optimizer.local_stats()["mode"] == "local"
    assert differ(list(model.parameters()))
    optimizer.drain()
    assert not differ(everything(model))


def case_a_drained_state_is_resumed_before_the_first_forward_pass() -> None:
    model = DistributedDataParallel(net(), **UNUSED)
    optimizer = sgd(model)
    train(model, optimizer, range(9))
    optimizer.drain()
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(9, STEPS))
    optimizer.drain()
    resumed = DistributedDataParallel(net(), **UNUSED)
    again = sgd(resumed)
    resumed.load_state_dict(kept[0])
    again.load_state_dict(kept[1])
    train(resumed, again, range(9, STEPS))
    again.drain()
    assert again.local_stats()["rounds"] > 0
    equal(resumed, model)


def case_one_rank_saves_and_all_resume() -> None:
    """A program that does not know of drain() saves on rank 0 at any step."""
    model = DistributedDataParallel(net(), **UNUSED)
    optimizer = sgd(model)
    kept: list[object] = [None]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(STEPS):
            train(model, optimizer, range(step, step + 1))
            if dist.get_rank() == 0:
                kept = [copy.deepcopy((model.module.state_dict(), optimizer.state_dict()))]
    assert (dist.get_rank() == 0) == any("begins local updates anew" in str(one.message) for one in told)
    dist.broadcast_object_list(kept)
    resumed = DistributedDataParallel(net(), **UNUSED)
    again = sgd(resumed)
    resumed.module.load_state_dict(kept[0][0])
    again.load_state_dict(kept[0][1])
    train(resumed, again, range(STEPS + 1))
    assert again.local_stats()["mode"] == "local"
    again.drain()
    assert not differ(everything(resumed))
    optimizer.drain()


def case_models_with_several_optimizers() -> None:
    model = DistributedDataParallel(net(), **UNUSED)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizers = [torch.optim.SGD(params[:3], lr=0.05), torch.optim.AdamW(params[3:], lr=0.01)]
    train_with(model, optimizers, range(STEPS + 1))
    assert differ(list(model.parameters()))
    for optimizer in optimizers:
        assert optimizer.local_stats()["mode"] == "local"
        optimizer.drain()
    assert not differ(everything(model))


def case_two_optimizers_of_the_same_parameters_are_refused() -> None:
    model = DistributedDataParallel(net(), **UNUSED)
    optimizers = [sgd(model), sgd(model)]
    fails(lambda: loss_of(model, 0, 0), NotImplementedError, "one optimizer for each parameter")
    del optimizers


def case_an_elastic_job_is_refused() -> None:
    model = DistributedDataParallel(net(), **UNUSED)
    optimizer = sgd(model)
    with mock.patch("sirtaki.basics.is_elastic", return_value=True):
        fails(lambda: loss_of(model, 0, 0), NotImplementedError, "elastic.min")
    del optimizer


def case_a_model_without_an_optimizer_is_refused() -> None:
    model = DistributedDataParallel(net(), **UNUSED)
    fails(lambda: loss_of(model, 0, 0), ValueError, "optimizer of the model before", "local_updates=1")
