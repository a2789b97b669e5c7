"""DistributedDataParallel of a program that does not know Sirtaki, with sirtakirun --local-updates 4."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from ranks.error_cases import fails
from ranks.torch.local_cases import STEPS, differ, everything, net, sgd, train
from ranks.torch_distributed.ddp_support import start

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


def case_models_with_several_optimizers_are_refused() -> None:
    model = DistributedDataParallel(net(), **UNUSED)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizers = [torch.optim.SGD(params[:2], lr=0.1), torch.optim.SGD(params[2:], lr=0.1)]
    fails(lambda: train(model, optimizers[0], range(1)), ValueError, "has 2", "local_updates=1")
