"""sync="forward" on every rank, with parameters that are read in other ways than by calling their module."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sirtaki.torch as hvd
from ranks.torch.forward_support import adamw, distributed, momentum, same_bits, state_of
from sirtaki.torch import _module_hooks


def given(step: int) -> Tensor:
    return torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))


def same_training(
    make: Callable[[], nn.Module], loss_of: Callable[[nn.Module, int], Tensor], after: Callable[[nn.Module], None]
) -> None:
    """Trains a model of `make` in every mode; calls `after` between step() and the next forward pass."""

    def train(sync: str) -> Iterable[Tensor]:
        torch.manual_seed(11)
        model = make()
        optimizer = distributed(model, adamw, sync)
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            after(model)
        optimizer.wait()
        return [*model.parameters(), *state_of(optimizer)]

    same_bits(train)


def mean_square(model: nn.Module, step: int) -> Tensor:
    return model(given(step)).square().mean()


def nothing(model: nn.Module) -> None:
    del model


class ReadsFirst(nn.Module):
    """A module that reads the weight of a child before it calls the child, and the bias of another after its call."""

    def __init__(self) -> None:
        super().__init__()
        self.dec, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        read = F.linear(x, self.dec.weight)
        return self.last(read + self.dec(x)) + self.last.bias


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def case_weight_read_before_its_module_is_called() -> None:
    same_training(ReadsFirst, mean_square, nothing)


def case_attribute_read_updates_one_parameter() -> None:
    torch.manual_seed(3)
    model = small()
    optimizer = distributed(model, momentum, "forward")
    for step in range(3):
        optimizer.zero_grad()
        mean_square(model, step).backward()
        optimizer.step()
    params = [p for name in "02" for p in (model._modules[name]._parameters.values())]
    before = [p.detach().clone() for p in params]
    read = model[2].bias
    assert read is params[3]
    assert [torch.equal(p, q) for p, q in zip(params, before, strict=True)] == [True, True, True, False]
    first = next(model.parameters())
    assert first is params[0]
    assert [torch.equal(p, q) for p, q in zip(params, before, strict=True)] == [False, True, True, False]
    assert len(list(model.named_parameters())) == 4
    assert [torch.equal(p, q) for p, q in zip(params, before, strict=True)] == [False] * 4
    optimizer.wait()


def case_regularizers_before_the_forward_pass() -> None:
    def penalized(model: nn.Module, step: int) -> Tensor:
        with torch.no_grad():
            weights = sum(p.square().sum() for p in model.parameters()).clone()
        penalty = sum(p.square().sum() for _, p in model.named_parameters())
        return mean_square(model, step) * (1 + weights) + 0.01 * penalty + model[2].weight.abs().sum()

    same_training(small, penalized, nothing)


def case_averages_and_clamps_after_step() -> None:
    averages: list[Tensor] = []

    def average_and_clamp(model: nn.Module) -> None:
        with torch.no_grad():
            averages[:] = [p.clone() for p in model.parameters()]
            for p in model.parameters():
                p.clamp_(-0.3, 0.3)

    def near_the_average(model: nn.Module, step: int) -> Tensor:
        loss = mean_square(model, step)
        if not step:
            averages.clear()
        return loss + sum((p - q).square().sum() for p, q in zip(model.parameters(), averages, strict=False))

    same_training(small, near_the_average, average_and_clamp)


def case_copies_of_the_model() -> None:
    """Updates are complete in copies by copy.deepcopy, torch.save of the module, conversions and traces."""

    def train(sync: str) -> Iterable[Tensor]:
        torch.manual_seed(12)
        model = small()
        optimizer = distributed(model, adamw, sync)
        copies: list[nn.Module] = []
        for step in range(5):
            optimizer.zero_grad()
            mean_square(model, step).backward()
            optimizer.step()
            if step == 1:
                copies.append(copy.deepcopy(model))
            elif step == 2:
                file = io.BytesIO()
                torch.save(model, file)
                file.seek(0)
                copies.append(torch.load(file, weights_only=False))
            elif step == 3:
                model.double()
                model.float()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(model, torch.ones(2, 4))
        assert "sub" not in str(traced.inlined_graph)
        optimizer.wait()
        copies.append(model)
        return [p for m in copies for p in m.parameters()] + [traced(torch.ones(2, 4)), model(torch.ones(2, 4))]

    same_bits(train)


class Dropped(nn.Module):
    """A model whose attention block and parameter list are left out on some ranks in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.Linear(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.factors = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(2)])

    def forward(self, x: Tensor, keep: bool) -> Tensor:
        x = self.first(x)
        if keep:
            x = x + self.attention(x, x, x, need_weights=False)[0]
            for factor in self.factors:
                x = x * factor
        return x


def case_layers_dropped_on_some_ranks() -> None:
    def loss_of(model: nn.Module, step: int) -> Tensor:
        keep = step == 0 or (step + hvd.rank()) % 2 == 0
        return model(given(step), keep).square().mean()

    same_training(Dropped, loss_of, nothing)


def case_reads_leave_nothing_behind() -> None:
    if not _module_hooks.listener_count():
        plain = nn.Module.__getattr__
        optimizer = distributed(small(), momentum, "forward")
        assert nn.Module.__getattr__ is not plain
        del optimizer
        assert nn.Module.__getattr__ is plain
        assert "__reduce_ex__" not in vars(nn.Module)
