"""Models compiled in regions, trained by DistributedOptimizer and under DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sirtaki.torch as hvd
from ranks.torch.compile_support import regions_of
from ranks.torch.forward_support import MODES
from ranks.torch_distributed.ddp_support import TWOBIT, batch, equal_on_all, net, sgd, start, train
from sirtaki.torch.ddp import accelerate

LAYERS = 4


class Wide(nn.Module):
    """A model of which each inner layer is larger than the smallest bucket that torch compiles, 1 MiB.

    torch compiles frames of the program only: the forward() of a bare Sequential is none.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(nn.Linear(8, 520), *[nn.Linear(520, 520) for _ in range(LAYERS)], nn.Linear(520, 3))

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(rows)


def close(one: nn.Module, other: nn.Module) -> None:
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


def logits(run: Any) -> Tensor:
    return run(batch(0)[0])


def case_distributed_optimizer_trains_a_model_in_regions() -> None:
    start()
    for sync in MODES:
        torch.compiler.reset()
        model, reference = net(), net()
        compiled = hvd.compile(model, bucket_bytes=2000, backend="aot_eager")
        assert regions_of(logits(compiled)) == 2
        for run, own in ((compiled, model), (reference, reference)):
            optimizer = hvd.DistributedOptimizer(sgd(own), own.named_parameters(), sync=sync)
            train(run, optimizer)
            if sync == "forward":
                optimizer.wait()
        close(model, reference)
        equal_on_all(model)


def case_an_accelerated_model_is_compiled_by_the_bucket() -> None:
    start()
    results = []
    for make in (None, torch.compile, hvd.compile):
        torch.compiler.reset()
        model = DistributedDataParallel(Wide(), bucket_cap_mb=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run = model if make is None else make(model, backend="aot_eager")
        handle = accelerate(model, optimizer, compression=TWOBIT)
        assert regions_of(logits(run)) == (0 if make is None else LAYERS + 1)
        for step in range(4):
            optimizer.zero_grad()
            rows, labels = batch(step)
            F.cross_entropy(run(rows), labels).backward()
            optimizer.step()
        assert any(row["codec"].startswith("twobit") for row in handle.compression_report())
        equal_on_all(model)
        results.append(model.module)
        handle.remove()
    close(results[1], results[0])
    close(results[2], results[0])
