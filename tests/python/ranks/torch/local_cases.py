"""Local updates: each rank makes steps of its own between merges of models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sirtaki.torch as hvd
from ranks.torch.optimizer_support import close, raises, same_on_all_ranks
from sirtaki import errors

STEPS = 24
Make = Callable[[nn.Module], torch.optim.Optimizer]


class Net(nn.Module):
    """Convolution, BatchNorm with and without parameters, a tied weight, a frozen layer, an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.plain = nn.BatchNorm2d(4, affine=False)
        self.frozen = nn.Linear(64, 16)
        self.hidden = nn.Linear(16, 16)
        self.last = nn.Linear(16, 5)
        self.never = nn.Linear(2, 2)
        self.again = nn.Linear(16, 16, bias=False)
        self.again.weight = self.hidden.weight
        for p in self.frozen.parameters():
            p.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(self.plain(F.relu(self.norm(self.conv(images)))), 2).flatten(1)
        return self.last(F.relu(self.again(F.relu(self.hidden(self.frozen(x))))))


def net() -> Net:
    torch.manual_seed(3)
    return Net()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def batch(step: int, shard: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + shard)
    images = torch.randn(6, 1, 8, 8, generator=generator)
    return images, images[:, 0, 0, :5].argmax(1)


def loss_of(model: nn.Module, step: int, shard: int) -> Tensor:
    images, labels = batch(step, shard)
    return F.cross_entropy(model(images), labels)


def distributed(model: nn.Module, make: Make = sgd, **settings: Any) -> Any:
    return hvd.DistributedOptimizer(make(model), model.named_parameters(), **settings)


def train(model: nn.Module, optimizer: Any, steps: range, shard: int | None = None) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank() if shard is None else shard).backward()
        optimizer.step()


def everything(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *(b.float() for b in model.buffers())]


def differ(tensors: list[Tensor]) -> bool:
    """Tells whether any rank has other values than rank 0. Collective."""
    flat = torch.cat([t.detach().flatten() for t in tensors])
    first = hvd.broadcast(flat, 0, name="differ.first")
    return bool(hvd.allreduce(torch.tensor([float(not torch.equal(first, flat))]), op=hvd.Max, name="differ") > 0)


def case_one_step_is_the_synchronous_path() -> None:
    for make in (sgd, adamw):
        reference, model = net(), net()
        train(reference, distributed(reference, make), range(STEPS))
        optimizer = distributed(model, make, local_updates=1)
        train(model, optimizer, range(STEPS))
        close(model, reference, 0.0)
        assert optimizer.local_stats() == {}


def case_auto_on_one_host_is_synchronous_training() -> None:
    # Steps of such a small net wait most of the time, and at small learning rates a little waiting is enough.
    models = []
    for local in ({}, {"local_updates": "auto:warmup=4"}):
        model = net()
        optimizer = distributed(model, **local)
        for step in range(120):
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * (1 - step / 120)
            train(model, optimizer, range(step, step + 1))
        models.append(model)
    assert optimizer.local_stats()["merges"] == 0
    close(models[1], models[0], 0.0)


def case_equal_data_is_one_process() -> None:
    """With 2^k ranks the mean of equal models is exact."""
    for make in (sgd, adamw):
        reference, model = net(), net()
        alone = make(reference)
        optimizer = distributed(
            model, make, local_updates=hvd.LocalUpdates("fixed:steps=4,delay=0", fragments=2, outer="none")
        )
        train(reference, alone, range(STEPS), shard=0)
        train(model, optimizer, range(STEPS), shard=0)
        optimizer.drain()
        close(model, reference, 0.0)


def case_outer_momentum_is_the_default() -> None:
    """Merges of equal models move by 0.7 times 1 + 0.5 / (1 - 0.5 rho) of the progress of a round."""
    expected = ((None, 4, 0.7, 0.5), ("none", 4, 1.0, 0.0), (hvd.Outer(0.5, 0.0), 4, 0.5, 0.0))
    for outer, interval, lr, momentum in (*expected, (None, "diloco:steps=4", 0.7, 0.9)):
        model = net()
        optimizer = distributed(model, local_updates=hvd.LocalUpdates(interval, outer=outer))
        train(model, optimizer, range(STEPS))
        found = optimizer.local_stats()["outer"]
        assert (found["lr"], found["momentum"]) == (lr, momentum), found
        rho = found["autocorrelation"]
        assert (rho is None) == (momentum == 0), found
        rate = lr * (1 + momentum / (1 - momentum * (rho or 0)))
        assert abs(found["effective_rate"] - rate) < 1e-6, found
        optimizer.drain()
        assert not differ(everything(model))


def case_models_drift_and_meet() -> None:
    for how in (4, "fixed:steps=6,delay=2", hvd.LocalUpdates(5, fragments=3), "diloco:steps=8"):
        model = net()
        optimizer = distributed(model, local_updates=how)
        train(model, optimizer, range(STEPS + 1))
        assert optimizer.local_stats()["mode"] == "local", optimizer.local_stats()
        assert differ(list(model.parameters())), how
        with optimizer.global_model():
            same_on_all_ranks(model.parameters())
        assert differ(list(model.parameters())), how
        optimizer.drain()
        assert not differ(everything(model)), how
        train(model, optimizer, range(3))
        optimizer.drain()
        assert not differ(everything(model)), how


def case_training_learns() -> None:
    for make, how in ((sgd, 4), (adamw, hvd.LocalUpdates(4, optimizer_state=2)), (sgd, "auto:warmup=4,gain=0")):
        model = net()
        optimizer = distributed(model, make, local_updates=how)
        before = sum(loss_of(model, s, hvd.rank()).item() for s in range(8))
        for _ in range(12):
            train(model, optimizer, range(8))
        optimizer.drain()
        assert not differ(everything(model))
        after = sum(loss_of(model, s, hvd.rank()).item() for s in range(8))
        first, last = hvd.allreduce(torch.tensor([before, after]), name="losses").tolist()
        assert last < 0.9 * first, (how, first, last)


def case_a_function_sets_the_interval() -> None:
    told: list[dict[str, Any]] = []

    def interval(round_: dict[str, Any]) -> int:
        told.append(round_)
        return 2 + len(told) % 2

    model = net()
    optimizer = distributed(model, local_updates=interval)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step, hvd.rank())
        loss.backward()
        optimizer.report_loss(loss)
        optimizer.step()
    optimizer.drain()
    assert len(told) > 3
    assert abs(told[-1]["lr"] - 0.05) < 1e-9, told[-1]
    assert told[-1]["loss"] > 0, told[-1]
    same_on_all_ranks(model.parameters())


def case_a_function_that_fails_ends_the_training() -> None:
    def interval(round_: dict[str, Any]) -> int:
        raise KeyError("no such round")

    model = net()
    optimizer = distributed(model, local_updates=interval)
    raises(lambda: train(model, optimizer, range(STEPS)), KeyError, "no such round")


def case_synchronous_region() -> None:
    model = net()
    optimizer = distributed(model, local_updates=4)
    train(model, optimizer, range(6))
    with optimizer.synchronous():
        same_on_all_ranks(model.parameters())
        train(model, optimizer, range(3))
        same_on_all_ranks(model.parameters())
    train(model, optimizer, range(60))
    optimizer.drain()
    same_on_all_ranks(model.parameters())


def case_accumulation_and_schedulers() -> None:
    model = net()
    optimizer = distributed(model, local_updates=3, backward_passes_per_step=2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    for step in range(12):
        optimizer.zero_grad()
        for part in range(2):
            loss_of(model, 2 * step + part, hvd.rank()).backward()
        optimizer.step()
        scheduler.step()
    optimizer.drain()
    same_on_all_ranks(model.parameters())


def case_resumed_training_is_the_same() -> None:
    for make, how in ((sgd, "fixed:steps=4,delay=1"), (adamw, hvd.LocalUpdates("fixed:steps=3,delay=1", fragments=2))):
        whole = net()
        optimizer = distributed(whole, make, local_updates=how)
        train(whole, optimizer, range(9))
        optimizer.drain()
        kept = copy.deepcopy((whole.state_dict(), optimizer.state_dict()))
        train(whole, optimizer, range(9, STEPS))
        optimizer.drain()
        resumed = net()
        again = distributed(resumed, make, local_updates=how)
        resumed.load_state_dict(kept[0])
        again.load_state_dict(kept[1])
        train(resumed, again, range(9, STEPS))
        again.drain()
        close(resumed, whole, 0.0)


def case_checkpoints_that_differ_are_refused() -> None:
    model = net()
    optimizer = distributed(model, local_updates="fixed:steps=4,delay=1")
    kept = []
    for steps in (range(5), range(5, 7)):
        train(model, optimizer, steps)
        optimizer.drain()
        kept.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))
    # Ranks load checkpoints of different steps; then rank 0 loads none, and averages gradients while the others do not.
    for mine in (kept[hvd.rank() % 2], kept[0] if hvd.rank() > 0 else None):
        resumed = net()
        again = distributed(resumed, local_updates="fixed:steps=4,delay=1")
        if mine is not None:
            resumed.load_state_dict(mine[0])
            again.load_state_dict(mine[1])
        raises(lambda r=resumed, a=again: train(r, a, range(5, 6)), errors.HorovodInternalError, "checkpoint")


def case_compressed_differences() -> None:
    model = net()
    optimizer = distributed(model, local_updates=hvd.LocalUpdates(4, compression="int8"))
    train(model, optimizer, range(STEPS))
    optimizer.drain()
    assert not differ(everything(model))


def case_residuals_of_synchronous_steps_go_into_local_ones() -> None:
    generator = torch.Generator().manual_seed(7)
    slopes = torch.randn(hvd.size(), 8192, generator=generator)
    # A codec that corrects momentum clears that of the elements it sends, and that of its last step is lost.
    cases = ((0.0, "", 1e-4), (0.5, "", 1e-4), (0.5, ",momentum=0.5", 3.0))
    for momentum, more, steps_lost in cases:
        model = nn.Linear(8192, 1, bias=False)
        nn.init.zeros_(model.weight)
        rate = 0.01 * (1 - momentum)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum),
            model.named_parameters(),
            compression=f"group_topk:rate=2%{more}",
            local_updates=hvd.LocalUpdates("fixed:steps=4,warmup=8", outer="none", compression="none"),
        )
        for step in range(STEPS + 24):
            optimizer.zero_grad()
            # The last gradients are 0, so that the momentum runs out.
            (float(step < STEPS) * model(slopes[hvd.rank()])).sum().backward()
            optimizer.step()
        optimizer.drain()
        missed = model.weight.detach()[0] / -0.01 - STEPS * slopes.mean(0)
        limit = steps_lost * slopes.abs().max()
        assert missed.abs().max() < limit, (momentum, more, missed.abs().max(), limit)


class Experts(nn.Module):
    """A model with a layer that only rank 0 uses, in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.expert = nn.Linear(8, 8)

    def forward(self, x: Tensor, expert: bool) -> Tensor:
        x = self.base(x)
        return self.expert(x) if expert else x


def case_optimizers_agree_when_gradients_are_averaged_again() -> None:
    torch.manual_seed(1)
    model = Experts()
    optimizer = distributed(model, adamw, local_updates=3)
    x = torch.ones(2, 8)
    for step in range(11):
        optimizer.zero_grad()
        model(x, step == 0 or (hvd.rank() == 0 and step % 2 == 1)).square().sum().backward()
        optimizer.step()
    with optimizer.synchronous():
        for _ in range(4):
            optimizer.zero_grad()
            model(x * (1 + hvd.rank()), True).square().sum().backward()
            optimizer.step()
        same_on_all_ranks(model.parameters())


def case_checkpoint_while_gradients_are_averaged() -> None:
    model = net()
    optimizer = distributed(model, local_updates="auto")
    for steps in (15, 1, 7):
        train(model, optimizer, range(steps))
        optimizer.drain()
        assert optimizer.state_dict()["sirtaki.local"]["alone"] is False
    train(model, optimizer, range(20))
    same_on_all_ranks(model.parameters())


def case_a_rank_without_a_first_backward() -> None:
    for sync in ("backward", "step"):
        model = net()
        optimizer = distributed(model, sync=sync, local_updates=3)
        loss = loss_of(model, 0, hvd.rank())
        if hvd.rank() != 1:
            loss.backward()
        optimizer.step()
        train(model, optimizer, range(5))
        optimizer.drain()
        same_on_all_ranks(model.parameters())


def case_buffers_of_some_ranks_are_refused() -> None:
    model = net()
    optimizer = distributed(model, local_updates=3)
    if hvd.rank() != 1:
        loss_of(model, 0, hvd.rank()).backward()
    raises(optimizer.step, errors.HorovodInternalError, "another model or buffers")


def case_memory_that_was_replaced_is_refused() -> None:
    model = net()
    optimizer = distributed(model, local_updates=3)
    train(model, optimizer, range(2))
    model.last.weight.data = model.last.weight.data.clone()
    raises(lambda: train(model, optimizer, range(1)), RuntimeError, "last.weight", "replaced")


def case_what_cannot_be_is_refused() -> None:
    model = net()
    refused = errors.UnsupportedError
    lbfgs = torch.optim.LBFGS(model.parameters())
    raises(lambda: hvd.DistributedOptimizer(lbfgs, local_updates=4), refused, "LBFGS")
    raises(lambda: distributed(model, sync="forward", local_updates=4), refused, "forward")
    raises(lambda: distributed(model, op=hvd.Sum, local_updates=4), refused, "Average")
    half = net().bfloat16()
    raises(lambda: distributed(half, local_updates=4), refused, "bfloat16")
    raises(lambda: hvd.LocalUpdates(4, merge="average"), errors.InvalidArgumentError, "merge")
    raises(lambda: hvd.LocalUpdates(4, outer="momentum"), errors.InvalidArgumentError, "Outer")
    raises(lambda: hvd.LocalUpdates(2.5), errors.InvalidArgumentError, "number of steps")
    optimizer = distributed(model, local_updates=4)
    loss_of(model, 0, hvd.rank()).backward()
    raises(lambda: optimizer.step(lambda: loss_of(model, 0, 0)), refused, "closure")
    raises(lambda: distributed(net(), local_updates="quick"), errors.InvalidArgumentError, "quick")


def case_models_that_differ_are_refused() -> None:
    torch.manual_seed(hvd.rank())
    model = Net()
    optimizer = distributed(model, local_updates=4)
    raises(lambda: train(model, optimizer, range(1)), errors.HorovodInternalError, "not broadcast")
