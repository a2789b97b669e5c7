"""User-defined compressors in DistributedOptimizer, and scale_lr()."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import sirtaki.torch as hvd
from ranks.torch.optimizer_support import (
    STEPS,
    Branches,
    close,
    expect_averages,
    goes_left,
    loss_of,
    make_model,
    raises,
    same_on_all_ranks,
    sgd,
)


class Halves(hvd.Compressor):
    """Sends float64 as float32."""

    calls = 0

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        cls.calls += 1
        return tensor.to(torch.float32), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: Any) -> Tensor:
        return tensor.to(ctx)


class Exact:
    """A compressor that is an object and no subclass, and that changes the shape of a tensor."""

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        return tensor.reshape(-1), tensor.shape

    def decompress(self, tensor: Tensor, ctx: Any) -> Tensor:
        return tensor.view(ctx)


def train(compression: Any, sync: str, **options: Any) -> nn.Module:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(model), model.named_parameters(), compression=compression, sync=sync, **options
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    same_on_all_ranks(model.parameters())
    return model


def case_a_compressor_of_ones_own_gives_what_the_runtime_gives() -> None:
    for sync in ("backward", "step"):
        for options in ({}, {"op": hvd.Sum}, {"gradient_predivide_factor": 2.0}):
            close(train(Exact(), sync, **options), train("none", sync, **options), 1e-12)


def case_a_compressor_may_change_the_dtype() -> None:
    for sync in ("backward", "step"):
        before = Halves.calls
        model = train(Halves, sync)
        assert Halves.calls == before + STEPS * len(list(model.parameters()))
        close(model, train("none", sync), 1e-5)
        assert all(p.grad is not None and p.grad.dtype == torch.float64 for p in model.parameters())


def case_a_subclass_of_a_compressor_of_ours_is_ones_own() -> None:
    class Counted(hvd.Compression.fp16):
        calls = 0

        @classmethod
        def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
            cls.calls += 1
            return super().compress(tensor)

    train(Counted, "backward")
    assert Counted.calls > 0


def case_unused_parameters_with_a_compressor_of_ones_own() -> None:
    model = Branches()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters(), compression=Exact()
    )
    for step in range(4):
        optimizer.zero_grad()
        model(torch.ones(1, 2), goes_left(step)).sum().backward()
        optimizer.step()
        expect_averages(model, step)


def case_sparse_gradients_beside_a_compressor_of_ones_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=Exact()
    )
    for step in range(3):
        optimizer.zero_grad()
        model(torch.tensor([(hvd.rank() + step) % 5])).sum().backward()
        optimizer.step()
    same_on_all_ranks(model.parameters())


def case_accumulation_with_a_compressor_of_ones_own() -> None:
    models = []
    for compression in (Exact(), "none"):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), compression=compression, backward_passes_per_step=2
        )
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, 2 * step).backward()
            loss_of(model, 2 * step + 1).backward()
            optimizer.step()
        models.append(model)
    close(*models)


def case_an_edit_in_flight_is_seen() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), compression=Exact(), sync="step")
    loss_of(model, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    loss_of(model, 1).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    raises(optimizer.step, RuntimeError, "was changed", "synchronize()")
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    optimizer.step()


def case_a_compressor_that_fails_makes_the_step_void_everywhere() -> None:
    class Fails(Exact):
        armed = False

        def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
            if self.armed:
                raise ArithmeticError("no room")
            return super().compress(tensor)

    model, compressor = make_model(), Fails()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), compression=compressor)

    def once(step: int) -> None:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()

    once(0)
    before = [p.detach().clone() for p in model.parameters()]
    compressor.armed = hvd.rank() == 0
    if hvd.rank() == 0:
        raises(lambda: once(1), ArithmeticError, "no room")
        compressor.armed = False
        optimizer.zero_grad()
    else:
        raises(lambda: once(1), hvd.HorovodInternalError, "rank 0")
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    once(2)
    same_on_all_ranks(model.parameters())


def case_bad_compressors_are_named() -> None:
    class NoPair(Exact):
        def compress(self, tensor: Tensor) -> Any:
            return tensor

    class Forgets(Exact):
        def decompress(self, tensor: Tensor, ctx: Any) -> Tensor:
            return tensor

    class Sparse(Exact):
        def compress(self, tensor: Tensor) -> Any:
            return tensor.to_sparse(), None

    def once(compressor: Any) -> None:
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), compression=compressor)
        try:
            loss_of(model, 0).backward()
        finally:
            optimizer.zero_grad()

    # The first rank that fails may void the step on the other ranks before they reach the fault themselves.
    both = (ValueError, hvd.HorovodInternalError)
    raises(lambda: once(NoPair()), both)
    raises(lambda: once(Sparse()), both)
    raises(lambda: once(Forgets()), ValueError, "decompress()", "0.weight", "undo")
    hvd.barrier()


def case_choices_that_are_none() -> None:
    model = make_model()
    named = list(model.named_parameters())
    for choice in (3, object(), dict):
        raises(
            lambda choice=choice: hvd.DistributedOptimizer(sgd(model), named, compression=choice),
            ValueError,
            "Compression",
            "compress()",
        )
    raises(
        lambda: hvd.DistributedOptimizer(sgd(model), named, compression=Exact(), sync="forward"),
        NotImplementedError,
        'sync="backward"',
    )


def case_scale_lr_rises_to_the_number_of_ranks() -> None:
    size, model = hvd.size(), make_model()
    for distributed in (False, True):
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        scheduler = hvd.scale_lr(optimizer, warmup_steps=4)
        rates = []
        for step in range(6):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            scheduler.step()
        wanted = [0.1 * (1 + (size - 1) * min(1.0, step / 4)) for step in range(6)]
        assert torch.allclose(torch.tensor(rates), torch.tensor(wanted)), (rates, wanted)


def case_scale_lr_at_once_beneath_another_scheduler() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    hvd.scale_lr(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5 * hvd.size()
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loss_of(model, 0).backward()
    optimizer.step()
    decay.step()
    assert optimizer.param_groups[0]["lr"] == 0.25 * hvd.size()
    raises(lambda: hvd.scale_lr(optimizer), ValueError, "before", "load_state_dict()")
    raises(lambda: hvd.scale_lr(torch.optim.SGD(model.parameters(), lr=0.5), -1), ValueError, "warmup_steps is -1")
    raises(lambda: hvd.scale_lr(model), ValueError, "Sequential")
