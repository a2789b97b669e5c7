"""sync="forward" on every rank: the same bits as the other modes, and what programs do between step and forward."""

from __future__ import annotations

import copy
import gc
import io
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_pre_hooks

import sirtaki
import sirtaki.torch as hvd
from ranks.optimizer_cases import Bomb, raises, same_on_all_ranks, sparse_model
from sirtaki.torch import _calls

MODES = ("backward", "step", "forward")
STEPS = 5
Make = Callable[[nn.Module], torch.optim.Optimizer]


class Tied(nn.Module):
    """Tied embedding and output, attention whose out_proj is never called, a layer nobody uses, one used at times."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.sometimes = nn.Linear(8, 8)
        self.never = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, words: Tensor, sometimes: bool = False) -> Tensor:
        x = self.embed(words)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        if sometimes:
            x = self.sometimes(x)
        return self.head(self.norm(x) * self.scale)


def tied() -> Tied:
    torch.manual_seed(5)
    return Tied()


def words(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    return torch.randint(0, 11, (3, 6), generator=generator)


def loss_of(model: nn.Module, step: int, sometimes: bool = False) -> Tensor:
    given = words(step)
    return F.cross_entropy(model(given[:, :-1], sometimes).flatten(0, 1), given[:, 1:].flatten())


def distributed(model: nn.Module, make: Make, sync: str, **options: Any) -> Any:
    return hvd.DistributedOptimizer(make(model), model.named_parameters(), sync=sync, **options)


def plain_training(optimizer: Any, model: nn.Module, steps: Iterable[int] = range(STEPS)) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def same_bits(train: Callable[[str], Iterable[Tensor]]) -> None:
    """`train(sync)` gives the same bits in every mode and on every rank."""
    results = [[t.detach().clone() for t in train(sync)] for sync in MODES]
    same_on_all_ranks(results[0])
    for sync, result in zip(MODES[1:], results[1:], strict=True):
        for i, (expected, actual) in enumerate(zip(results[0], result, strict=True)):
            assert torch.equal(expected, actual), (sync, i, (expected - actual).abs().max())


def state_of(optimizer: Any) -> list[Tensor]:
    """What the optimizer remembers, in order."""
    state = optimizer.state_dict()["state"]
    return [v for key in sorted(state) for _, v in sorted(state[key].items()) if isinstance(v, Tensor)]


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
    """A scheduler's step after step() must not change updates that are still to be made."""

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


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)


def case_accumulation() -> None:
    for way in ("passes", "no_sync"):

        def train(sync: str, way: str = way) -> Iterable[Tensor]:
            model = tied()
            optimizer = distributed(model, momentum, sync, backward_passes_per_step=3 if way == "passes" else 1)
            for step in range(4):
                optimizer.zero_grad()
                for part in range(3):
                    if way == "no_sync" and part < 2:
                        with optimizer.no_sync():
                            loss_of(model, 3 * step + part).backward()
                    else:
                        loss_of(model, 3 * step + part).backward()
                optimizer.step()
            optimizer.wait()
            return model.parameters()

        same_bits(train)


def case_parameters_used_at_times_and_on_some_ranks() -> None:
    def train(sync: str) -> Iterable[Tensor]:
        model = tied()
        optimizer = distributed(model, momentum, sync)
        for step in range(8):
            optimizer.zero_grad()
            loss_of(model, step, sometimes=(step // 2 + (hvd.rank() if step > 3 else 0)) % 2 == 0).backward()
            optimizer.step()
        optimizer.wait()
        assert model.never.weight.grad is None
        return model.parameters()

    same_bits(train)


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


def case_gradients_stay_until_they_are_cleared() -> None:
    model = tied()
    optimizer = distributed(model, momentum, "forward")
    plain_training(optimizer, model, range(2))
    optimizer.wait()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert grads
    same_on_all_ranks(grads)
    loss_of(model, 2).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert model.norm.weight.grad is not None
    optimizer.wait()
    assert all(p.grad is None for p in model.parameters())


def case_step_returns_before_the_gradients_are_there() -> None:
    """Rank 0 is late; the others' step() does not wait for it, their next forward pass does."""
    model = tied()
    optimizer = distributed(model, momentum, "forward")
    plain_training(optimizer, model, range(3))
    optimizer.zero_grad()
    loss = loss_of(model, 3)
    before = model.norm.weight.detach().clone()
    hvd.barrier()
    if hvd.rank() == 0:
        time.sleep(0.3)
    begin = time.monotonic()
    loss.backward()
    optimizer.step()
    seconds = time.monotonic() - begin
    if hvd.rank() != 0:
        assert seconds < 0.2, seconds
        assert torch.equal(before, model.norm.weight)
        model(words(4))
        assert time.monotonic() - begin > 0.2
    optimizer.wait()
    assert not torch.equal(before, model.norm.weight)
    same_on_all_ranks(model.parameters())


def case_layers_are_updated_one_after_the_other() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)), nn.Linear(4, 1))
    optimizer = distributed(model, adamw, "forward")
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    before = [p.detach().clone() for p in model.parameters()]

    def changed() -> list[bool]:
        return [not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)]

    assert changed() == [False] * 6
    hidden = model[0](torch.ones(2, 3))
    assert changed() == [True] * 2 + [False] * 4
    model[1](hidden)
    assert changed() == [True] * 4 + [False] * 2
    model[2].state_dict()
    assert changed() == [True] * 6


def case_evaluation_between_steps() -> None:
    """Under no_grad and inference_mode, with layers that skip the calls of their parts, and right after step()."""

    def train(sync: str) -> Iterable[Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(11, 8), nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True))
        optimizer = distributed(model, adamw, sync)
        seen = []
        for step in range(6):
            optimizer.zero_grad()
            model(words(step)).square().mean().backward()
            optimizer.step()
            model.eval()
            with torch.inference_mode() if step % 2 else torch.no_grad():
                seen.append(model(words(99)).clone())
            model.train()
        optimizer.wait()
        gathered = [*model.parameters(), *state_of(optimizer)]
        assert all(torch.equal(*hvd.allreduce(t[:1, :1, :1].repeat(2, 1, 1).clone())) for t in seen)
        return gathered + [hvd.allreduce(t.clone()) for t in seen]

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
    """Two optimizers whose models call each other."""

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
    def train(sync: str) -> Iterable[Tensor]:
        model = tied()
        optimizer = distributed(model, momentum, sync)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        return model.parameters()

    same_bits(train)


def case_a_pattern_of_synchronize_scales() -> None:
    def train(sync: str) -> Iterable[Tensor]:
        model = tied()
        optimizer = distributed(model, adamw, sync)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(4):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            if step == 1 and hvd.rank() == 0:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 2.0
        return model.parameters()

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
    del coupled
    gc.collect()

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


def case_use_without_the_update_is_detected() -> None:
    """A weight that its module used in the first step, and another module uses in the third."""
    torch.manual_seed(7)
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    optimizer = distributed(model, momentum, "forward")
    for _ in range(2):
        optimizer.zero_grad()
        model["b"](model["a"](torch.ones(1, 2))).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    loss = F.linear(model["a"](torch.ones(1, 2)), model["b"].weight).sum()
    raises(loss.backward, RuntimeError, "b.weight")


def case_changes_of_weights_wait_or_are_refused() -> None:
    def clamp(model: nn.Module) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.1, 0.1)

    def train(sync: str) -> Iterable[Tensor]:
        model = tied()
        optimizer = distributed(model, momentum, sync)
        for step in range(4):
            plain_training(optimizer, model, range(step, step + 1))
            optimizer.wait()
            clamp(model)
        return model.parameters()

    same_bits(train)
    model = tied()
    optimizer = distributed(model, momentum, "forward")
    plain_training(optimizer, model, range(2))
    clamp(model)
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


def case_nothing_is_left_behind() -> None:
    gc.collect()
    hooks, listeners, plain = len(_global_forward_pre_hooks), _calls.listening(), nn.Module.state_dict
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
    assert _calls.listening() == listeners
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
    assert _calls.listening() == listeners
    same_on_all_ranks(model.parameters())
