"""Gradients that are not finite with compression.nonfinite=error: the step is void on all ranks, in every mode."""

from __future__ import annotations

import functools

import torch

from ranks.torch.compression_cases import TOPK, make, train
from ranks.torch.forward_support import MODES
from ranks.torch.optimizer_support import raises, same_on_all_ranks
from ranks.torch.skip_cases import owed, step_with_an_infinity
from sirtaki import errors


def case_the_error_names_rank_and_tensor_and_training_goes_on() -> None:
    for codec in ("none", TOPK):
        for sync in MODES:
            model, optimizer = make(codec, sync, momentum=0.9)
            train(model, optimizer, range(4))
            weights = [p.detach().clone() for p in model.parameters()]
            before = owed(optimizer)["first.weight"] if codec != "none" else None
            step = functools.partial(step_with_an_infinity, model, optimizer)
            raises(step, errors.NonFiniteError, "first.weight", "rank 0")
            assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True)), (codec, sync)
            if before is not None:
                assert bool(before.any())
                assert torch.equal(owed(optimizer)["first.weight"], before), sync
            train(model, optimizer, range(4, 8))
            same_on_all_ranks(model.parameters())
