"""Gradients that are not finite with compression.nonfinite=skip: all ranks skip the step, in every mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import sirtaki.torch as hvd
from ranks.torch.compression_cases import TOPK, F, batch, make, mean_loss, saved, train
from ranks.torch.forward_support import MODES
from ranks.torch.optimizer_support import same_on_all_ranks


def owed(optimizer: Any) -> dict[str, Tensor]:
    return saved(optimizer.state_dict())["sirtaki"]["owed"]


def step_with_an_infinity(model: Any, optimizer: Any) -> None:
    """Makes a step in which the gradient of `first.weight` is infinite on rank 0."""
    factor = float("inf") if hvd.rank() == 0 else 1.0
    hook = model.first.weight.register_hook(lambda gradient: gradient * factor)
    try:
        optimizer.zero_grad()
        inputs, labels = batch(0)
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.wait()
    finally:
        hook.remove()


def case_all_ranks_leave_the_step_out() -> None:
    for codec in ("none", TOPK):
        for sync in MODES:
            model, optimizer = make(codec, sync, momentum=0.9)
            train(model, optimizer, range(4))
            before = [p.detach().clone() for p in model.parameters()]
            inputs, labels = batch(0)
            if hvd.rank() == 0:
                inputs[0, 0] = float("inf")
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.wait()
            assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)), (codec, sync)
            assert all(p.grad is None for p in model.parameters()), (codec, sync)
            losses = train(model, optimizer, range(4, 20))
            assert mean_loss(losses[-4:]) < mean_loss(losses[:4]), (codec, sync, losses)
            same_on_all_ranks(model.parameters())


def case_a_step_left_out_changes_nothing_that_the_tensor_owes() -> None:
    for sync in MODES:
        model, optimizer = make(TOPK, sync)
        train(model, optimizer, range(4))
        before = owed(optimizer)["first.weight"]
        step_with_an_infinity(model, optimizer)
        assert bool(before.any())
        assert torch.equal(owed(optimizer)["first.weight"], before), sync
