"""Trainings whose ranks must hold the same model, bit for bit, after every step.

Right: optimizer state is broadcast with its own types; an optimizer that decides by the loss decides alike on all
ranks; a gradient that is a negated view keeps its sign; float16 values whose mean is in range do not overflow; a model
with re-entrant checkpoints around all trainable weights trains; two optimizers whose parameters backward reaches in
another order train.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any


def same_everywhere(what: str, tensors: Iterable[Any]) -> None:
    import torch

    import sirtaki.torch as hvd

    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    everyone = hvd.allgather(flat[None], name=f"check.{what}")
    assert everyone.eq(everyone[0]).all(), f"{what}: {everyone}"


def state_keeps_its_types() -> None:
    import torch

    import sirtaki.torch as hvd

    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    plain = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    if hvd.rank() == 0:
        plain.state[parameter]["momentum_buffer"] = torch.full((3,), 1.001, dtype=torch.float32)
    hvd.broadcast_optimizer_state(plain, root_rank=0)
    kept = plain.state[parameter]["momentum_buffer"]
    assert kept.dtype is torch.float32, kept.dtype
    same_everywhere("state", [kept])


def line_search() -> None:
    import torch

    import sirtaki.torch as hvd

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe"), model.named_parameters()
    )
    torch.manual_seed(1 + hvd.rank())
    inputs, target = torch.randn(16, 3), torch.randn(16, 1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    same_everywhere("lbfgs", model.parameters())


def negated_view() -> None:
    import torch

    import sirtaki.torch as hvd

    class Negated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, turn: bool) -> torch.Tensor:
            ctx.turn = turn
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            return (torch._neg_view(grad) if ctx.turn else grad), None

    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    for turn in (False, True):
        weight.grad = None
        Negated.apply(weight, turn).sum().backward()
        optimizer.step()
    assert weight.detach().eq(0).all(), weight


def halves() -> None:
    import torch

    import sirtaki.torch as hvd

    mean = hvd.allreduce(torch.full((3,), 40000.0, dtype=torch.float16), name="halves")
    assert mean.eq(40000.0).all(), mean


def checkpoints_around_all_weights() -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    import sirtaki.torch as hvd

    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), layer.named_parameters())
    for _ in range(3):
        optimizer.zero_grad()
        embedded = torch.full((2, 3), float(hvd.rank()), requires_grad=True)
        checkpoint(layer, embedded, use_reentrant=True).sum().backward()
        optimizer.step()
    same_everywhere("checkpoints", layer.parameters())


def tasks_in_another_order() -> None:
    import torch

    import sirtaki.torch as hvd

    torch.manual_seed(0)
    layers = [torch.nn.Linear(2, 1) for _ in range(2)]
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=0.1), [(f"{i}.{n}", p) for n, p in layer.named_parameters()]
        )
        for i, layer in enumerate(layers)
    ]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        order = layers if hvd.rank() == 0 else layers[::-1]
        torch.stack([layer(torch.ones(1, 2)).sum() for layer in order]).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    same_everywhere("tasks", [p for layer in layers for p in layer.parameters()])


def main() -> int:
    if "SIRTAKI_JOB_RANK" not in os.environ:
        job = ["sirtakirun", "-np", "2", sys.executable, os.path.abspath(__file__)]
        return subprocess.run(job, check=False).returncode
    import sirtaki.torch as hvd

    hvd.init()
    for part in (
        state_keeps_its_types,
        line_search,
        negated_view,
        halves,
        checkpoints_around_all_weights,
        tasks_in_another_order,
    ):
        part()
        print(f"{part.__name__}: right", flush=True)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
