"""sync="forward" on every rank: calls that programs make between step() and the next forward pass."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import multiprocessing
import threading
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_pre_hooks

import sirtaki
import sirtaki.torch as hvd
from ranks.torch.forward_support import (
    adamw,
    distributed,
    loss_of,
    momentum,
    plain_training,
    same_bits,
    state_of,
    tied,
    trained,
    words,
)
from ranks.torch.optimizer_support import Bomb, raises, same_on_all_ranks
from sirtaki.torch import _module_hooks


def case_gradients_stay_until_they_are_cleared() -> None:
    model = tied()
    optimizer = distributed(model, momentum, "forward")
    plain_training(optimizer, model, range(2))
    optimizer.wait()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert grads
    same_on_all_ranks(grads)
    loss_of(model, 2).backward()
    weight = model.norm.weight
    optimizer.step()
    optimizer.zero_grad()
    assert weight.grad is not None
    optimizer.wait()
    assert all(p.grad is None for p in model.parameters())


def case_step_returns_before_the_gradients_are_there() -> None:
    """Rank 0 goes on once the others report the end of step(); the next forward pass of the others waits for rank 0."""
    model = tied()
    optimizer = distributed(model, momentum, "forward")
    plain_training(optimizer, model, range(3))
    optimizer.zero_grad()
    loss = loss_of(model, 3)
    weight = model.norm.weight
    before = weight.detach().clone()
    if hvd.rank() == 0:
        hvd.allreduce(torch.ones(1), name="step() is over")
        loss.backward()
        optimizer.step()
    else:
        loss.backward()
        optimizer.step()
        assert torch.equal(before, weight)
        told = hvd.allreduce_async(torch.ones(1), name="step() is over")
        model(words(4))
        hvd.synchronize(told)
    optimizer.wait()
    assert not torch.equal(before, model.norm.weight)
    same_on_all_ranks(model.parameters())


def case_layers_are_updated_one_after_the_other() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)), nn.Linear(4, 1))
    params = list(model.parameters())
    optimizer = distributed(model, adamw, "forward")
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        before = [p.detach().clone() for p in params]
        optimizer.step()

    def changed() -> list[bool]:
        return [not torch.equal(p, q) for p, q in zip(params, before, strict=True)]

    assert changed() == [False] * 6
    hidden = model[0](torch.ones(2, 3))
    assert changed() == [True] * 2 + [False] * 4
    model[1](hidden)
    assert changed() == [True] * 4 + [False] * 2
    model[2].state_dict()
    assert changed() == [True] * 6


def case_evaluation_between_steps() -> None:
    """Evaluation right after step(), under no_grad and inference_mode, with layers that skip calls of their parts."""

    def train(sync: str) -> Iterable[Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(11, 8), nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True))
        optimizer = distributed(model, adamw, sync)
        seen = []
        given = hvd.broadcast(words(99), 0)
        for step in range(6):
            optimizer.zero_grad()
            model(words(step)).square().mean().backward()
            optimizer.step()
            model.eval()
            with torch.inference_mode() if step % 2 else torch.no_grad():
                seen.append(model(given).clone())
            model.train()
        optimizer.wait()
        return [*model.parameters(), *state_of(optimizer), *seen]

    same_bits(train)


class TiedParts(nn.Module):
    """Two parts with one weight; the model reads the weight and never calls the parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.parts = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
        self.parts[1].weight = self.parts[0].weight

    def forward(self, x: Tensor) -> Tensor:
        weight = self._modules["parts"]._modules["0"]._parameters["weight"]
        return F.linear(F.linear(self.first(x), weight), weight)


def case_tied_weights_are_updated_once() -> None:
    """A tied weight is updated once, whether the model is called in training or in evaluation."""

    def train(sync: str) -> Iterable[Tensor]:
        torch.manual_seed(13)
        models = [tied(), TiedParts()]
        optimizers = [distributed(model, momentum, sync) for model in models]
        seen = []
        for step in range(6):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_of(models[0], step).backward()
            models[1](torch.full((2, 4), 0.1 * (step + hvd.rank()))).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
            if step % 2:
                given = hvd.broadcast(words(step), 0)
                with torch.no_grad():
                    for model, x in zip(models, (given, torch.ones(1, 4)), strict=True):
                        seen.append(model.eval()(x).clone())
                        model.train()
        for optimizer in optimizers:
            optimizer.wait()
        return [*models[0].parameters(), *models[1].parameters(), *seen]

    same_bits(train)


def case_a_thread_that_evaluates_while_another_trains() -> None:
    model = tied()
    optimizer = distributed(model, momentum, "forward")
    over = threading.Event()
    failures: list[BaseException] = []

    def evaluate() -> None:
        given = words(0)
        try:
            while not over.is_set():
                with torch.no_grad():
                    model(given)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        plain_training(optimizer, model, range(60))
    finally:
        over.set()
        thread.join()
    assert not failures, failures
    optimizer.wait()
    same_on_all_ranks(model.parameters())


def case_checkpoints_in_the_middle() -> None:
    def train(sync: str) -> Iterable[Tensor]:
        model = tied()
        optimizer = distributed(model, adamw, sync)
        plain_training(optimizer, model, range(2))
        file = io.BytesIO()
        if hvd.rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        saved = hvd.broadcast_object(file.getvalue())
        plain_training(optimizer, model, range(2, 4))
        kept = torch.load(io.BytesIO(saved), weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        plain_training(optimizer, model, range(2, 5))
        hvd.broadcast_parameters(dict(model.named_parameters()))
        return [*model.parameters(), *state_of(optimizer)]

    same_bits(train)


def case_hooks_of_step_run_once_a_step() -> None:
    model = tied()
    plain = momentum(model)
    calls: list[tuple[str, bool]] = []
    before: list[Tensor] = []

    def changed() -> bool:
        return any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))

    plain.register_step_pre_hook(lambda *_: calls.append(("pre", changed())))
    plain.register_step_post_hook(lambda *_: calls.append(("post", changed())))
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), sync="forward")
    for step in range(2):
        optimizer.wait()
        before = [p.detach().clone() for p in model.parameters()]
        plain_training(optimizer, model, range(step, step + 1))
    optimizer.wait()
    assert calls == [("pre", False), ("post", True)] * 2, calls


def case_a_pattern_of_synchronize_clips() -> None:
    def step(optimizer: Any, model: nn.Module, number: int) -> None:
        loss_of(model, number).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()

    same_bits(lambda sync: trained(sync, momentum, step))


def case_a_pattern_of_synchronize_scales() -> None:
    def train(sync: str) -> Iterable[Tensor]:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

        def step(optimizer: Any, model: nn.Module, number: int) -> None:
            loss = loss_of(model, number)
            if number == 1 and hvd.rank() == 0:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()

        parameters = trained(sync, adamw, step)
        assert scaler.get_scale() == 2.0
        return parameters

    same_bits(train)


def case_what_it_cannot_do_is_refused_with_the_mode_to_use() -> None:
    model = tied()
    named = list(model.named_parameters())

    def make(plain: torch.optim.Optimizer) -> Any:
        return hvd.DistributedOptimizer(plain, named, sync="forward")

    class Coupled(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    way_out = 'sync="backward"'
    raises(lambda: make(torch.optim.LBFGS(model.parameters())), NotImplementedError, way_out)
    raises(lambda: make(Coupled(model.parameters(), lr=0.1)), NotImplementedError, "Coupled")
    coupled = Coupled(model.parameters(), lr=0.1)
    coupled.forward_safe = True
    plain_training(make(coupled), model, range(2))

    class Counting(torch.optim.SGD):
        forward_safe = True

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["steps"] = group.get("steps", 0) + 1
            return super().step(closure)

    counting = make(Counting(model.parameters(), lr=0.1))
    raises(lambda: plain_training(counting, model, range(4)), NotImplementedError, "Counting", "'steps'", way_out)

    optimizer = distributed(model, momentum, "forward")
    plain_training(optimizer, model, range(2))
    raises(lambda: optimizer.step(lambda: None), NotImplementedError, way_out)
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    raises(optimizer.step, RuntimeError, way_out)
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    with optimizer.skip_synchronize():
        raises(optimizer.step, RuntimeError, "synchronize()")
    optimizer.synchronize()
    optimizer.zero_grad()
    plain_training(optimizer, model, range(3, 5))
    raises(lambda: model.zero_grad(set_to_none=False) or model(words(0)), RuntimeError, way_out)
    optimizer.zero_grad()
    plain_training(optimizer, model, range(5, 7))
    for plain in (momentum(model), torch.optim.Adam(model.parameters(), fused=True)):
        optimizer = make(plain)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(loss_of(model, 0)).backward()
        raises(lambda o=optimizer, s=scaler: s.step(o), NotImplementedError, way_out)
        optimizer.synchronize()


def case_optimizers_derived_without_a_step_of_their_own() -> None:
    """Torch wraps step() of the class that is instantiated first: the derived class or its base."""

    class Base(torch.optim.SGD):
        pass

    class Derived(Base):
        pass

    plain = torch.optim.SGD.step
    try:
        torch.optim.SGD.step = inspect.unwrap(plain, stop=lambda f: not getattr(f, "hooked", False))
        for makers in ((Derived, torch.optim.SGD, Base), (Base, Derived)):
            for make in makers:
                model = tied()
                optimizer = hvd.DistributedOptimizer(
                    make(model.parameters(), lr=0.1), model.named_parameters(), sync="forward"
                )
                plain_training(optimizer, model, range(2))
                optimizer.wait()
                same_on_all_ranks(model.parameters())
    finally:
        torch.optim.SGD.step = plain

    class Wrapped(torch.optim.SGD):
        @functools.wraps(plain)
        def step(self, closure: Any = None) -> Any:
            return plain(self, closure)

    raises(
        lambda: hvd.DistributedOptimizer(Wrapped(tied().parameters(), lr=0.1), sync="forward"),
        NotImplementedError,
        "Wrapped",
    )


def case_use_without_the_update_is_detected() -> None:
    """The module uses the weight in the first step; in the third step the program uses a reference that it has kept."""
    torch.manual_seed(7)
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    kept = model["b"].weight
    optimizer = distributed(model, momentum, "forward")
    for _ in range(2):
        optimizer.zero_grad()
        model["b"](model["a"](torch.ones(1, 2))).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    loss = F.linear(model["a"](torch.ones(1, 2)), kept).sum()
    raises(loss.backward, RuntimeError, "b.weight")


def case_changes_of_weights_wait_or_are_refused() -> None:
    def clamp(params: Iterable[Tensor]) -> None:
        with torch.no_grad():
            for p in params:
                p.clamp_(-0.1, 0.1)

    def train(sync: str) -> Iterable[Tensor]:
        model = tied()
        kept = list(model.parameters())
        optimizer = distributed(model, momentum, sync)
        for step in range(4):
            plain_training(optimizer, model, range(step, step + 1))
            optimizer.wait()
            clamp(kept)
        return model.parameters()

    same_bits(train)
    model = tied()
    kept = list(model.parameters())
    optimizer = distributed(model, momentum, "forward")
    plain_training(optimizer, model, range(2))
    clamp(kept)
    raises(lambda: model(words(3)), RuntimeError, "wait()")


def case_exceptions_with_updates_to_be_made() -> None:
    def train(sync: str) -> Iterable[Tensor]:
        torch.manual_seed(8)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = distributed(model, momentum, sync)
        for step in range(6):
            optimizer.zero_grad()
            if step == 2:
                raises(lambda: model(torch.ones(1, 7)), RuntimeError, "shape")
            if step == 4:
                raises(
                    lambda: model[2](Bomb.apply(model[0](torch.ones(1, 3)))).sum().backward(), ArithmeticError, "bomb"
                )
                continue
            model(torch.full((1, 3), step + hvd.rank() + 1.0)).sum().backward()
            optimizer.step()
        optimizer.wait()
        return model.parameters()

    same_bits(train)


def case_a_rank_that_fails_after_step() -> None:
    model = tied()
    optimizer = distributed(model, momentum, "forward")
    plain_training(optimizer, model, range(2))
    optimizer.zero_grad()
    if hvd.rank() == 0:
        hidden = Bomb.apply(model.embed(words(2)))
        raises(model.head(model.norm(hidden)).sum().backward, ArithmeticError, "bomb")
        optimizer.zero_grad()
    else:

        def rest() -> None:
            loss_of(model, 2).backward()
            optimizer.step()
            model(words(3))

        raises(rest, sirtaki.AbortedError, "rank 0")
        optimizer.zero_grad()
    plain_training(optimizer, model, range(3, 5))
    optimizer.wait()
    same_on_all_ranks(model.parameters())


def _use_in_child(model: nn.Module, given: Tensor, queue: Any) -> None:
    copy.deepcopy(model)
    with torch.no_grad():
        model(given)
    queue.put([p.tolist() for p in model.parameters()])


def case_forked_children_have_updated_parameters() -> None:
    model = tied()
    optimizer = distributed(model, momentum, "forward")
    plain_training(optimizer, model, range(3))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_use_in_child, args=(model, words(9), queue))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert queue.get() == [p.tolist() for p in model.parameters()]
    plain_training(optimizer, model, range(3, 5))
    optimizer.wait()
    same_on_all_ranks(model.parameters())


def case_nothing_is_left_behind() -> None:
    gc.collect()
    hooks, listeners, plain = len(_global_forward_pre_hooks), _module_hooks.listener_count(), nn.Module.state_dict
    model, reference = tied(), tied()
    for sync in ("forward", "backward", "step"):
        for net, mode in ((model, sync), (reference, "backward")):
            optimizer = distributed(net, adamw, mode)
            plain_training(optimizer, net, range(2))
            del optimizer
            gc.collect()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(p, q)
        assert not p._post_accumulate_grad_hooks
    assert len(_global_forward_pre_hooks) == hooks
    assert _module_hooks.listener_count() == listeners
    assert nn.Module.state_dict is plain or listeners
    optimizer = distributed(model, adamw, "forward")
    copy.deepcopy(model)
    plain_training(optimizer, model, range(2))
    torch.save(model, io.BytesIO())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    cycle = [optimizer, scheduler]
    cycle.append(cycle)
    plain_training(optimizer, model, range(2))
    del optimizer, scheduler, cycle
    gc.collect()
    # Pending updates are applied when the program reads the parameters.
    same_on_all_ranks(model.parameters())
    assert _module_hooks.listener_count() == listeners
