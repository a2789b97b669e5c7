"""Gradients that are not finite under DistributedDataParallel, with compression.nonfinite=error and =skip."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ranks.error_cases import fails
from ranks.torch_distributed.ddp_support import TWOBIT, accelerated, equal_on_all, loss_of, start, train
from sirtaki import basics

CODECS = ("none", TWOBIT)


def bad_loss(model: nn.Module) -> Tensor:
    return loss_of(model, 3) * (float("inf") if dist.get_rank() == 0 else 1.0)


def case_a_step_is_void_on_all_ranks() -> None:
    start()
    skips = basics.option("compression.nonfinite") == "skip"
    for codec in CODECS:
        model, optimizer, _ = accelerated(codec)
        train(model, optimizer, range(3))
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        loss = bad_loss(model)
        if skips:
            loss.backward()
            assert all(not p.grad.any() for p in model.parameters())
            optimizer.step()
        else:
            fails(loss.backward, RuntimeError, "rank 0", "of tensor '")
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
        train(model, optimizer, range(4, 6))
        assert not torch.equal(before[0], next(model.parameters()))
        equal_on_all(model)
