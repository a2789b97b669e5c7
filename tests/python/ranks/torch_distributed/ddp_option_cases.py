"""DistributedDataParallel of a program that does not know Sirtaki, with sirtakirun --compression twobit:wire=gather."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import sirtaki
from ranks.torch_distributed.ddp_support import (
    STEPS,
    TWOBIT,
    equal,
    equal_on_all,
    net,
    sgd,
    start,
    train,
    with_distributed_optimizer,
    wrapped,
)


def streams() -> set[str]:
    return set(sirtaki.basics.stats()["tensors"])


def case_an_unchanged_program_is_compressed() -> None:
    start()
    model = wrapped()
    optimizer = sgd(model)
    with torch.no_grad():
        model(torch.ones(1, 8))
    assert not streams()
    train(model, optimizer)
    assert any(row["codec"].startswith("twobit") for row in optimizer.compression_report())
    equal(model.module, train(*with_distributed_optimizer(TWOBIT)))
    assert optimizer.state_dict()["sirtaki"]["owed"]


def case_residuals_come_back_with_a_checkpoint() -> None:
    model = wrapped()
    optimizer = sgd(model)
    train(model, optimizer, range(4))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(4, 8))
    again = wrapped()
    resumed = sgd(again)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    equal(train(again, resumed, range(4, 8)), model)


def case_an_optimizer_that_comes_later() -> None:
    model = wrapped()
    before = streams()
    model(torch.ones(1, 8))
    optimizer = sgd(model)
    train(model, optimizer)
    assert len(streams() - before) == 1
    assert not hasattr(optimizer, "compression_report")
    equal(model.module, train(*with_distributed_optimizer(TWOBIT)))


def case_copies() -> None:
    early = wrapped()
    train(copy.deepcopy(early), sgd(early), range(1))
    model = wrapped()
    optimizer = sgd(model)
    train(model, optimizer, range(2))
    one = copy.deepcopy(model)
    before = streams()
    train(one, sgd(one), range(2))
    assert streams() == before
    equal_on_all(one)
    train(model, optimizer, range(2, STEPS))
    equal(model.module, train(*with_distributed_optimizer(TWOBIT)))


def case_two_optimizers_of_the_same_parameters() -> None:
    model = wrapped()
    optimizers = [sgd(model), torch.optim.Adam(model.parameters())]
    train(model, optimizers[0])
    assert not any(hasattr(one, "compression_report") for one in optimizers)
    equal(model.module, train(*with_distributed_optimizer(TWOBIT)))


def case_a_hook_of_the_program_goes_first() -> None:
    model = wrapped()
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    before = streams()
    train(model, sgd(model))
    assert streams() <= before
    equal_on_all(model)


def case_groups_of_gloo_stay_as_they_are() -> None:
    model = wrapped(process_group=dist.new_group(backend="gloo"))
    before = streams()
    train(model, sgd(model))
    assert streams() <= before


def case_optimizers_around_optimizers() -> None:
    model = wrapped()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    train(model, optimizer)
    equal(model.module, train(*with_distributed_optimizer(TWOBIT)))


def case_a_scheduler_made_before_the_first_step() -> None:
    model = wrapped()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for step in range(4):
        train(model, optimizer, range(step, step + 1))
        scheduler.step()
    other, reference = with_distributed_optimizer(TWOBIT)
    scheduler = torch.optim.lr_scheduler.StepLR(reference, 2)
    for step in range(4):
        train(other, reference, range(step, step + 1))
        scheduler.step()
    equal(model.module, other)


def case_compiled_models() -> None:
    for whole in (True, False):
        torch._dynamo.reset()
        inner = net() if whole else torch.compile(net(), backend="aot_eager")
        model = DistributedDataParallel(inner)
        optimizer = sgd(model)
        compiled: nn.Module = torch.compile(model, backend="aot_eager") if whole else model
        train(compiled, optimizer)
        assert any(row["codec"].startswith("twobit") for row in optimizer.compression_report())
        equal_on_all(model)
