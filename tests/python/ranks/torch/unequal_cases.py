"""Models that differ between ranks in the first step, because the program did not broadcast them."""

from __future__ import annotations

import warnings

import torch
from torch import nn

import sirtaki
import sirtaki.torch as hvd
from ranks.torch.optimizer_support import raises, same_on_all_ranks


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()


def unequal_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with torch.no_grad():
        model[1].weight[0, 0] += hvd.rank() * 1e-6
        model[1].bias[0] += hvd.rank()
    return model


def made(model: nn.Module) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())


def case_a_warning_names_the_first_tensor() -> None:
    model = unequal_model()
    optimizer = made(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            step_of(model, optimizer)
    told = [str(w.message) for w in caught if "not the same on all ranks" in str(w.message)]
    assert len(told) == (1 if hvd.rank() == 0 else 0), told
    for text in told:
        assert all(word in text for word in ("1.weight", "2 of 4", "broadcast_parameters")), text


def case_equal_models_say_nothing() -> None:
    model = unequal_model()
    hvd.broadcast_parameters(model.state_dict())
    optimizer = made(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step_of(model, optimizer)


def case_kinds_of_parameters() -> None:
    """Half precision, unusual strides, empty tensors."""
    torch.manual_seed(1)
    tensors = [torch.randn(3, 5).t(), torch.randn(7).bfloat16(), torch.randn(4).double(), torch.empty(0)]
    params = [nn.Parameter(t) for t in tensors]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sum(p.double().sum() for p in params).backward()
        optimizer.step()


def _with_option(value: str) -> None:
    hvd.shutdown()
    sirtaki.init(options={"torch.unequal_models": value})


def case_an_error_where_that_is_wanted() -> None:
    _with_option("error")
    model = unequal_model()
    optimizer = made(model)
    raises(lambda: step_of(model, optimizer), hvd.HorovodInternalError, "1.weight", "broadcast_parameters")
    hvd.broadcast_parameters(model.state_dict())
    step_of(model, optimizer)
    same_on_all_ranks(model.parameters())


def case_rank_0s_parameters_where_that_is_wanted() -> None:
    _with_option("broadcast")
    model = unequal_model()
    optimizer = made(model)
    step_of(model, optimizer)
    same_on_all_ranks(model.parameters())
    step_of(model, optimizer)
    same_on_all_ranks(model.parameters())
