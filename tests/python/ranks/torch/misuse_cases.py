"""DistributedOptimizer in programs that cannot work: every rank raises an error; no rank computes a wrong number."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import sirtaki
import sirtaki.torch as hvd
from ranks.torch.forward_support import MODES
from ranks.torch.optimizer_support import Bomb, close, raises, same_on_all_ranks
from sirtaki import _core, errors


def small() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def distributed(model: nn.Module, sync: str, params: Iterable[Tensor] | None = None) -> Any:
    plain = torch.optim.SGD(model.parameters() if params is None else params, lr=0.1)
    return hvd.DistributedOptimizer(plain, model.named_parameters(), sync=sync)


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    dtype = next(model.parameters()).dtype
    return model(torch.full((2, 4), 0.1 * (step + rank + 1.0), dtype=dtype)).square().mean()


def backward(model: nn.Module, step: int = 0) -> None:
    loss_of(model, step, hvd.rank()).backward()


def train(model: nn.Module, optimizer: Any, steps: int = 3) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    optimizer.wait()


def train_alone(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    """Trains one process as train() trains all ranks together."""
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(hvd.size()):
            (loss_of(model, step, rank) / hvd.size()).backward()
        optimizer.step()


def in_every_mode(check: Callable[[str], None]) -> None:
    for sync in MODES:
        check(sync)
        hvd.barrier()


def case_of_two_optimizers_of_one_parameter_the_later_works() -> None:
    def check(sync: str) -> None:
        model, reference = small(), small()
        first, plain = distributed(model, sync), torch.optim.SGD(reference.parameters(), lr=0.1)
        train(model, first)
        train_alone(reference, plain)
        first.zero_grad()
        backward(model)
        second = distributed(model, sync)
        for call in (first.step, first.synchronize):
            raises(call, RuntimeError, "made later", "groups")
        first.zero_grad()
        train(model, second)
        train_alone(reference, plain)
        close(model, reference)

    in_every_mode(check)


def case_a_new_optimizer_after_a_backward_that_failed() -> None:
    def check(sync: str) -> None:
        model = small()
        first = distributed(model, sync)
        train(model, first)
        if hvd.rank() == 0:
            bombed = Bomb.apply(model[0](torch.ones(1, 4).double()))
            raises(lambda: model[2](bombed).sum().backward(), ArithmeticError, "bomb")
        elif sync != "backward":
            backward(model)
        second = distributed(model, sync)
        model.zero_grad()
        train(model, second)
        same_on_all_ranks(model.parameters())

    in_every_mode(check)


def case_optimizers_that_nobody_deletes() -> None:
    """A replaced optimizer that forms a reference cycle with its scheduler lives until the garbage collector runs."""

    def check(sync: str) -> None:
        model, reference = small(), small()
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        gc.disable()
        try:
            for _ in range(3):
                optimizer = distributed(model, sync)
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
                cycle = [optimizer, scheduler]
                cycle.append(cycle)
                train(model, optimizer)
                train_alone(reference, plain)
        finally:
            gc.enable()
        close(model, reference)

    in_every_mode(check)


def case_parameters_added_by_hand_are_refused() -> None:
    def check(sync: str) -> None:
        model, extra = small(), nn.Linear(2, 2).double()
        optimizer = distributed(model, sync)
        train(model, optimizer)
        optimizer.param_groups[0]["params"].extend(extra.parameters())
        both = nn.Sequential(model, extra)
        raises(lambda: train(both, optimizer), RuntimeError, "parameter 4 of group 0", "add_param_group()")
        optimizer.param_groups[0]["params"][4:] = []
        optimizer.synchronize()
        optimizer.zero_grad()
        train(model, optimizer)
        same_on_all_ranks(model.parameters())

    in_every_mode(check)


def case_groups_are_added_between_steps() -> None:
    def check(sync: str) -> None:
        model, extra = small(), nn.Linear(2, 2).double()
        optimizer = distributed(model, sync)
        train(model, optimizer)
        optimizer.zero_grad()
        backward(model)
        raises(lambda: optimizer.add_param_group({"params": extra.parameters()}), RuntimeError, "call step()")
        optimizer.step()
        optimizer.add_param_group({"params": extra.parameters()})
        hvd.broadcast_parameters(extra.state_dict())
        train(nn.Sequential(model, extra), optimizer)
        same_on_all_ranks([*model.parameters(), *extra.parameters()])

    in_every_mode(check)


def case_parameters_unfrozen_later_are_refused() -> None:
    def check(sync: str) -> None:
        model = small()
        model[0].requires_grad_(False)
        optimizer = distributed(model, sync)
        train(model, optimizer)
        model[0].requires_grad_(True)
        raises(lambda: train(model, optimizer), RuntimeError, "parameter 0 of group 0", "unfreeze")

    in_every_mode(check)


def case_another_dtype_is_refused() -> None:
    def check(sync: str) -> None:
        model = small()
        optimizer = distributed(model, sync)
        train(model, optimizer)
        model.float()
        raises(lambda: train(model, optimizer), RuntimeError, "float32", "float64", f"on rank {hvd.rank()}")
        model.double()
        optimizer.zero_grad()
        train(model, optimizer)
        same_on_all_ranks(model.parameters())

    in_every_mode(check)


def case_parameters_that_cannot_be_sent_are_named() -> None:
    def check(sync: str) -> None:
        weight = nn.Parameter(torch.ones(2, 2).to(torch.float8_e4m3fn))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("weight", weight)], sync=sync)

        def step() -> None:
            weight.float().sum().backward()
            optimizer.step()

        raises(step, ValueError, "weight", "float8_e4m3fn", "float32")

    in_every_mode(check)


def case_another_shape_on_one_rank_is_told_to_all() -> None:
    def check(sync: str) -> None:
        for rows in (1, 5):
            model = small()
            optimizer = distributed(model, sync)
            train(model, optimizer)
            if hvd.rank() == 0:
                model[2].weight.data = torch.ones(rows, 6, dtype=torch.float64)
                model[2].bias.data = torch.ones(rows, dtype=torch.float64)
            kind = RuntimeError if hvd.rank() == 0 else sirtaki.AbortedError
            raises(lambda m=model, o=optimizer: train(m, o), kind, "2.bias", f"[{rows}]", "[2]", "on rank 0")

    in_every_mode(check)


def case_copies_of_an_optimizer_are_refused() -> None:
    def check(sync: str) -> None:
        model = small()
        optimizer = distributed(model, sync)
        train(model, optimizer)
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            raises(lambda make=make, o=optimizer: make(o), NotImplementedError, "state_dict()")
        fresh = torch.optim.SGD(model.parameters(), lr=1.0)
        fresh.load_state_dict(optimizer.state_dict())
        train(model, hvd.DistributedOptimizer(fresh, model.named_parameters(), sync=sync))
        same_on_all_ranks(model.parameters())

    in_every_mode(check)


def case_what_fails_behind_backward_ends_the_step_on_all_ranks() -> None:
    def check(sync: str) -> None:
        model = nn.ModuleList([small(), nn.Linear(2, 2).double()])
        optimizer = distributed(model, sync)
        train(model[0], optimizer)
        optimizer.zero_grad()
        if hvd.rank() == 0:
            model[1].weight.grad = torch.eye(2, dtype=torch.float64).to_sparse()

        def step() -> None:
            backward(model[0])
            optimizer.synchronize()

        kind = sirtaki.AbortedError if hvd.rank() else RuntimeError
        raises(step, kind, "rank 0" if hvd.rank() else "sparse_as_dense")
        optimizer.zero_grad()
        train(model[0], optimizer)
        same_on_all_ranks(model[0].parameters())

    in_every_mode(check)


def case_a_stream_that_cannot_open_leaves_no_step() -> None:
    def check(sync: str) -> None:
        model = nn.Linear(3, 2 + (hvd.rank() == 0))
        optimizer = distributed(model, sync)

        def step() -> None:
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()

        for _ in range(2):
            raises(step, hvd.HorovodInternalError, "weight")
            optimizer.zero_grad()

    in_every_mode(check)


def case_a_step_is_given_up_after_the_session() -> None:
    stream = _core.Stream("given up late", ["a"], [(0, 8, 0, 0, [3], None)], None, (int(hvd.Sum), 1.0, 1.0, None, 0))
    model = small()
    optimizer = distributed(model, "backward")
    train(model, optimizer)
    raises(lambda: model[2](Bomb.apply(model[0](torch.ones(1, 4).double()))).sum().backward(), ArithmeticError, "bomb")
    hvd.shutdown()
    raises(lambda: stream.abort("too late"), errors.NotInitializedError, "init()")
    optimizer.zero_grad()
    hvd.init()
    train(model, optimizer)
    same_on_all_ranks(model.parameters())
