"""sync="forward" gives the same bits as the other modes on every rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sirtaki.torch as hvd
from ranks.torch.forward_support import (
    Make,
    adamw,
    distributed,
    loss_of,
    momentum,
    plain_training,
    same_bits,
    state_of,
    tied,
    trained,
)
from ranks.torch.optimizer_support import sparse_model


def equal_for(*makes: Make) -> None:
    for make in makes:

        def train(sync: str, make: Make = make) -> list[Tensor]:
            model = tied()
            optimizer = distributed(model, make, sync)
            plain_training(optimizer, model)
            optimizer.wait()
            return [*model.parameters(), *state_of(optimizer)]

        same_bits(train)


def case_sgd_momentum_nesterov_weight_decay() -> None:
    equal_for(
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.1, maximize=True),
    )


def case_adam_and_adamw() -> None:
    equal_for(
        lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
        lambda m: torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True, foreach=True),
        lambda m: torch.optim.Adam(m.parameters(), lr=0.01, fused=True),
        lambda m: torch.optim.AdamW(m.parameters(), lr=torch.tensor(0.01)),
    )


def case_other_optimizers() -> None:
    equal_for(
        lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5, centered=True),
        lambda m: torch.optim.Adagrad(m.parameters(), lr=0.01),
        lambda m: torch.optim.Adadelta(m.parameters(), foreach=True),
        lambda m: torch.optim.NAdam(m.parameters(), lr=0.01),
        lambda m: torch.optim.RAdam(m.parameters(), lr=0.01),
        lambda m: torch.optim.ASGD(m.parameters(), lr=0.01),
        lambda m: torch.optim.Rprop(m.parameters(), lr=0.01),
        lambda m: torch.optim.Adamax(m.parameters(), lr=0.01),
    )


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    big = [p for p in model.parameters() if p.dim() > 1]
    small = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": big, "weight_decay": 0.1}, {"params": small, "lr": 0.05, "momentum": 0.0}]


def case_groups_and_schedulers() -> None:
    """The step of a scheduler after step() must not change pending updates."""

    def train(sync: str) -> Iterable[Tensor]:
        model = tied()
        plain = torch.optim.SGD(groups_of(model), lr=0.2, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), sync=sync)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=10)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(8):
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()
                cycle.step()
        optimizer.wait()
        assert sorted(len(g["params"]) for g in optimizer.param_groups) == sorted(
            len(g["params"]) for g in groups_of(model)
        )
        return model.parameters()

    same_bits(train)

    def tensor_rate(sync: str) -> Iterable[Tensor]:
        model = tied()
        optimizer = distributed(model, lambda m: torch.optim.Adam(m.parameters(), lr=torch.tensor(0.1)), sync)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            decay.step()
        optimizer.wait()
        return model.parameters()

    same_bits(tensor_rate)


def case_accumulation_by_passes() -> None:
    def step(optimizer: Any, model: nn.Module, number: int) -> None:
        for part in range(3):
            loss_of(model, 3 * number + part).backward()
        optimizer.step()

    same_bits(lambda sync: trained(sync, momentum, step, backward_passes_per_step=3))


def case_accumulation_by_no_sync() -> None:
    def step(optimizer: Any, model: nn.Module, number: int) -> None:
        with optimizer.no_sync():
            loss_of(model, 3 * number).backward()
            loss_of(model, 3 * number + 1).backward()
        loss_of(model, 3 * number + 2).backward()
        optimizer.step()

    same_bits(lambda sync: trained(sync, momentum, step))


def case_parameters_used_at_times_and_on_some_ranks() -> None:
    def step(optimizer: Any, model: nn.Module, number: int) -> None:
        sometimes = (number // 2 + (hvd.rank() if number > 3 else 0)) % 2 == 0
        loss_of(model, number, sometimes).backward()
        optimizer.step()
        assert model.never.weight.grad is None

    same_bits(lambda sync: trained(sync, momentum, step, steps=8))


def case_ways_to_clear_gradients() -> None:
    def none(optimizer: Any, model: nn.Module) -> None:
        del model
        optimizer.zero_grad()

    def zero(optimizer: Any, model: nn.Module) -> None:
        del model
        optimizer.zero_grad(set_to_none=False)

    def of_the_model(optimizer: Any, model: nn.Module) -> None:
        del optimizer
        model.zero_grad()

    def late(optimizer: Any, model: nn.Module) -> None:
        del optimizer, model

    for clear in (none, zero, of_the_model, late):

        def train(sync: str, clear: Callable[[Any, nn.Module], None] = clear) -> Iterable[Tensor]:
            model = tied()
            optimizer = distributed(model, momentum, sync)
            for step in range(4):
                loss = loss_of(model, step)
                if clear is late:
                    optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                clear(optimizer, model)
            optimizer.wait()
            if clear is none:
                assert all(p.grad is None for p in model.parameters())
            return model.parameters()

        same_bits(train)


def case_autocast_and_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (True, False):

        def train(sync: str, reentrant: bool = reentrant) -> Iterable[Tensor]:
            torch.manual_seed(2)
            model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 2))
            optimizer = distributed(model, lambda m: torch.optim.Adafactor(m.parameters(), lr=0.05), sync)
            for step in range(4):
                optimizer.zero_grad()
                given = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
                with torch.autocast("cpu", torch.bfloat16):
                    hidden = checkpoint(model[1], model[0](given), use_reentrant=reentrant)
                    loss = model[2](hidden).square().mean()
                loss.backward()
                optimizer.step()
            optimizer.wait()
            return model.parameters()

        same_bits(train)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.LSTM(4, 8, 2, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cells(x)[0])


class Lists(nn.Module):
    """A model with parameters in containers that are never called."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4, 4)) for _ in range(3)])
        self.last = nn.ParameterDict({"out": nn.Parameter(torch.randn(4, 1))})

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return x @ self.last["out"]


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.functional_call(self.net, dict(self.net.named_parameters()), (x,))


def normed() -> nn.Module:
    make = nn.utils.parametrizations
    return nn.Sequential(make.weight_norm(nn.Linear(4, 8)), make.spectral_norm(nn.Linear(8, 1)))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(4, 1))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(Recurrent())


def case_modules_that_use_parameters_in_their_own_ways() -> None:
    for make in (Recurrent, Lists, Functional, normed, encoder, scripted):

        def train(sync: str, make: Callable[[], nn.Module] = make) -> Iterable[Tensor]:
            torch.manual_seed(9)
            model = make()
            params = list(model.parameters())
            optimizer = distributed(model, adamw, sync)
            for step in range(4):
                optimizer.zero_grad()
                given = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
                model(given).square().mean().backward()
                before = [p.detach().clone() for p in params]
                optimizer.step()
                left = [torch.equal(p, q) for p, q in zip(params, before, strict=True)]
                assert all(left) == (sync == "forward"), (make, left)
            optimizer.wait()
            return model.parameters()

        same_bits(train)


def case_compiled_models() -> None:
    for in_place in (False, True):

        def train(sync: str, in_place: bool = in_place) -> Iterable[Tensor]:
            torch._dynamo.reset()
            torch.manual_seed(2)
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
            optimizer = distributed(model, adamw, sync)
            if in_place:
                model.compile(backend="eager")
            runner = model if in_place else torch.compile(model, backend="eager")
            for step in range(4):
                optimizer.zero_grad()
                given = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
                runner(given).square().mean().backward()
                optimizer.step()
            optimizer.wait()
            return model.parameters()

        same_bits(train)


def case_added_groups() -> None:
    def train(sync: str) -> Iterable[Tensor]:
        torch.manual_seed(3)
        model, extra = nn.Linear(3, 3), nn.Linear(3, 3)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sync=sync)
        for step in range(6):
            if step == 3:
                optimizer.add_param_group({"params": extra.parameters(), "lr": 0.01})
            optimizer.zero_grad()
            extra(model(torch.full((2, 3), step + hvd.rank() + 1.0))).square().mean().backward()
            if step < 3:
                extra.zero_grad()
            optimizer.step()
        optimizer.wait()
        return [*model.parameters(), *extra.parameters()]

    same_bits(train)


def case_parameters_without_a_module() -> None:
    def train(sync: str) -> Iterable[Tensor]:
        torch.manual_seed(4)
        weights = [nn.Parameter(torch.randn(3, 3)) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=0.1, momentum=0.9), sync=sync)
        for step in range(4):
            optimizer.zero_grad()
            x = torch.full((2, 3), 0.1 * (step + hvd.rank()))
            for weight in weights:
                x = torch.tanh(F.linear(x, weight))
            x.sum().backward()
            optimizer.step()
        return weights

    same_bits(train)


def case_the_step_of_a_gan() -> None:
    """The step of two optimizers whose models call each other."""

    def train(sync: str) -> Iterable[Tensor]:
        torch.manual_seed(6)
        maker, judge = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        one, two = distributed(maker, adamw, sync), distributed(judge, adamw, sync)
        for step in range(4):
            noise = torch.full((1, 2), 0.1 * step + hvd.rank())
            two.zero_grad()
            (judge(maker(noise).detach()) - judge(noise)).sum().backward()
            two.step()
            one.zero_grad()
            judge.requires_grad_(False)
            judge(maker(noise)).sum().backward()
            judge.requires_grad_(True)
            one.step()
        one.wait()
        two.wait()
        return [*maker.parameters(), *judge.parameters()]

    same_bits(train)


def case_sparse_gradients_are_waited_for() -> None:
    for as_dense in (False, True):

        def train(sync: str, as_dense: bool = as_dense) -> Iterable[Tensor]:
            model = sparse_model()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters(),
                sync=sync,
                sparse_as_dense=as_dense,
            )
            for step in range(3):
                optimizer.zero_grad()
                given = torch.randint(0, 10, (4, 2), generator=torch.Generator().manual_seed(9 * step + hvd.rank()))
                model(given).square().mean().backward()
                optimizer.step()
            optimizer.wait()
            return model.parameters()

        same_bits(train)
