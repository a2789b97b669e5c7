"""Local updates of AdamW, Muon and optimizers that mix methods: averages of their states, checkpoints, refusals."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import sirtaki.torch as hvd
from ranks.torch.local_cases import STEPS, Net, differ, everything, loss_of, net
from ranks.torch.optimizer_support import close, raises
from sirtaki import _core, errors

HOW = "fixed:steps=4,delay=1"


def matrices(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad and p.dim() == 2]


def others(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad and p.dim() != 2]


def muon_and_adamw(model: nn.Module, **how: Any) -> list[Any]:
    """Returns both optimizers, wrapped one by one: Muon takes matrices alone."""
    settings = hvd.LocalUpdates(**how)
    pairs = (
        (torch.optim.Muon([p for _, p in matrices(model)], lr=0.01), matrices(model)),
        (torch.optim.AdamW([p for _, p in others(model)], lr=0.01), others(model)),
    )
    return [hvd.DistributedOptimizer(one, named, local_updates=settings) for one, named in pairs]


class Mixed(torch.optim.Optimizer):
    """Momentum for matrices and Adam without bias correction for the rest, in the groups of one optimizer."""

    def __init__(self, model: nn.Module, keep: Callable[[Tensor], Any] = torch.zeros_like) -> None:
        groups = [
            {"params": [p for _, p in matrices(model)], "kind": "momentum"},
            {"params": [p for _, p in others(model)], "kind": "adam"},
        ]
        super().__init__(groups, {"lr": 0.01})
        self.keep = keep

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if group["kind"] == "momentum":
                    buffer = state.setdefault("momentum_buffer", self.keep(p))
                    (buffer[0] if isinstance(buffer, list) else buffer).mul_(0.9).add_(p.grad)
                    p.sub_(buffer[0] if isinstance(buffer, list) else buffer, alpha=group["lr"])
                    continue
                state["step"] = state.get("step", 0) + 1
                mean = state.setdefault("exp_avg", torch.zeros_like(p)).lerp_(p.grad, 0.1)
                square = state.setdefault("exp_avg_sq", torch.zeros_like(p)).lerp_(p.grad.square(), 0.05)
                p.addcdiv_(mean, square.sqrt().add_(1e-8), value=-group["lr"])


def train(model: nn.Module, optimizers: list[Any], steps: range) -> None:
    for step in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        for optimizer in optimizers:
            optimizer.step()


def states(optimizers: list[Any]) -> list[Tensor]:
    kept = [state for one in optimizers for state in one.state.values()]
    return [value.float() for state in kept for _, value in sorted(state.items()) if isinstance(value, Tensor)]


def case_muon_beside_adamw_resumes_bit_for_bit() -> None:
    how = {"interval": HOW, "optimizer_state": 1}
    whole = net()
    optimizers = muon_and_adamw(whole, **how)
    train(whole, optimizers, range(10))
    for one in optimizers:
        one.drain()
    assert not differ(everything(whole))
    kept = copy.deepcopy((whole.state_dict(), [one.state_dict() for one in optimizers]))
    train(whole, optimizers, range(10, STEPS))
    for one in optimizers:
        one.drain()
    resumed = net()
    again = muon_and_adamw(resumed, **how)
    resumed.load_state_dict(kept[0])
    for one, state in zip(again, kept[1], strict=True):
        one.load_state_dict(state)
    train(resumed, again, range(10, STEPS))
    for one in again:
        one.drain()
    close(resumed, whole, 0.0)


def case_muon_averages_its_momentum_alone() -> None:
    model = net()
    muon, adamw = muon_and_adamw(model, interval="fixed:steps=3,delay=0,warmup=0", optimizer_state=1)
    train(model, [muon, adamw], range(1, 2))  # averages gradients
    for step in range(2, 10):
        train(model, [muon, adamw], range(step, step + 1))
        assert {key for state in muon.state.values() for key in state} == {"momentum_buffer"}
        assert differ(states([muon])) == (step % 3 != 0), step
        assert differ(states([adamw])) == (step % 3 != 0), step
    with muon.synchronous(), adamw.synchronous():
        for step in range(3):
            train(model, [muon, adamw], range(step, step + 1))
            assert not differ([*model.parameters(), *states([muon, adamw])])


def case_groups_of_one_optimizer_may_differ() -> None:
    model = net()
    named = [*matrices(model), *others(model)]
    how = hvd.LocalUpdates("fixed:steps=3,delay=0,warmup=0", optimizer_state=1)
    optimizer = hvd.DistributedOptimizer(Mixed(model), named, local_updates=how)
    train(model, [optimizer], range(1, 2))  # averages gradients
    for step in range(2, 10):
        train(model, [optimizer], range(step, step + 1))
        assert differ(states([optimizer])) == (step % 3 != 0), step
    optimizer.drain()
    assert not differ(everything(model))


def case_averages_of_the_state_get_rarer_as_differences_get_smaller() -> None:
    """State travels as float32, so each average costs as much as several merges of few bits."""
    for codec, rounds in ((None, 3), ("int8", 12), ("twobit", 48)):
        model = net()
        how = hvd.LocalUpdates("fixed:steps=2,delay=0,warmup=0", compression=codec or "none")
        optimizer = hvd.DistributedOptimizer(torch.optim.AdamW(model.parameters(), 0.01), local_updates=how)
        averaged = []
        train(model, [optimizer], range(1, 2))  # averages gradients
        for step in range(2, 2 * 50):
            train(model, [optimizer], range(step, step + 1))
            if not differ(states([optimizer])):
                averaged.append(step)
        assert averaged[0] == 2 * rounds - 2, (codec, averaged)  # the first decision precedes the first step
        assert not averaged[1:] or averaged[1] - averaged[0] == 2 * rounds, (codec, averaged)
        optimizer.drain()


def case_auto_knows_whether_the_optimizer_keeps_moments() -> None:
    told: list[str] = []
    real = _core.Local

    def listening(name: str, interval: str, *rest: Any) -> Any:
        told.append(interval)
        return real(name, interval, *rest)

    _core.Local = listening
    try:
        for made, how in ((torch.optim.SGD, "auto"), (torch.optim.AdamW, "auto"), (torch.optim.AdamW, "8")):
            model = net()
            optimizer = hvd.DistributedOptimizer(made(model.parameters(), 0.01), local_updates=how)
            train(model, [optimizer], range(1))
            optimizer.drain()
    finally:
        _core.Local = real
    assert told == ["auto:compress=on", "auto:compress=on,optimizer=other", "8"]


def case_averages_of_the_state_take_a_small_part_of_the_time() -> None:
    model = net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), 0.01),
        local_updates=hvd.LocalUpdates("auto:gain=0,warmup=0"),
        compression="none",
    )
    local = optimizer._sirtaki_local
    average, average_in_turn = local._average_state, local._average_in_turn
    # Without those that make the momenta equal before ranks average gradients again.
    seconds: list[float] = []

    def slow() -> None:
        average()
        for _ in range(100):  # as on a slow link
            hvd.barrier()

    def in_turn() -> None:
        begin = time.perf_counter()
        average_in_turn()
        seconds.append(time.perf_counter() - begin)

    local._average_state, local._average_in_turn = slow, in_turn
    step, begin, goes_on = 0, time.perf_counter(), True
    while goes_on:
        train(model, [optimizer], range(step, step + 1))
        step += 1
        if step % 50 == 0:
            more = not seconds or time.perf_counter() - begin < 40 * max(seconds)
            goes_on = bool(hvd.allreduce(torch.tensor(float(more)), op=hvd.Max, name="more"))
    # A twentieth of the time, once a round of local steps has been timed; more than half of it without the limit.
    assert sum(seconds) < 0.25 * (time.perf_counter() - begin), seconds
    optimizer.drain()


def case_nested_states_are_refused() -> None:
    model = Net()
    hvd.broadcast_parameters(model.state_dict(), 0)
    named = [*matrices(model), *others(model)]
    how = hvd.LocalUpdates("fixed:steps=2,delay=0,warmup=0", optimizer_state=1)
    kept = Mixed(model, lambda p: [torch.zeros_like(p)])
    optimizer = hvd.DistributedOptimizer(kept, named, local_updates=how)
    raises(lambda: train(model, [optimizer], range(6)), errors.UnsupportedError, "momentum_buffer", "list")
