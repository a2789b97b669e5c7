"""Compression in torch: DDP with its fp16 hook, and PowerSGD over the whole model. Runs inside a worker.

The PowerSGD hook of torch needs more than one collective in flight from within a hook, which Gloo does not support;
here the same method runs after backward in two blocking all-reduces of the whole model, the least possible number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.systems import GlooSystem


class GlooFp16System(GlooSystem):
    """DDP with its hook that sends float16."""

    def train(self, model: Any, optimizer: Any, **how: Any) -> tuple[Any, Any]:
        """Wraps the model in DDP and registers the hook."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model, optimizer = super().train(model, optimizer, **how)
        model.register_comm_hook(None, fp16_compress_hook)
        return model, optimizer


class PowerSgdSystem(GlooSystem):
    """PowerSGD (Vogels et al., 2019) with warm start and error feedback.

    Vectors, and tensors that would not get smaller, stay dense.
    """

    def train(self, model: Any, optimizer: Any, rank: int = 1, seed: int = 0) -> tuple[Any, Any]:
        """Averages gradients at the beginning of step() of the optimizer."""
        params = [p for p in model.parameters() if p.requires_grad]
        exchange = LowRank(params, rank, seed, self._dist.all_reduce, self._dist.get_world_size())
        # The hook keeps the exchange alive, and the optimizer keeps the hook.
        optimizer.register_step_pre_hook(lambda *_: exchange.run())
        return model, optimizer


class LowRank:
    """Factors, errors and buffers of one model."""

    def __init__(
        self, params: list[Tensor], rank: int, seed: int, allreduce: Callable[[Tensor], Any], size: int
    ) -> None:
        device = params[0].device
        self._allreduce, self._size = allreduce, size
        shapes = [(p.shape[0], p.numel() // max(1, p.shape[0])) for p in params]
        low = [
            p.dim() > 1 and rank * (rows + cols) < rows * cols for p, (rows, cols) in zip(params, shapes, strict=True)
        ]
        self._dense = [p for p, is_low in zip(params, low, strict=True) if not is_low]
        self._low = [(p, shape) for p, shape, is_low in zip(params, shapes, low, strict=True) if is_low]
        generator = torch.Generator().manual_seed(seed)
        self._errors = [torch.zeros(shape, device=device) for _, shape in self._low]
        lefts = sum(rows * rank for _, (rows, _) in self._low)
        rights = sum(cols * rank for _, (_, cols) in self._low)
        self._first = torch.zeros(lefts + sum(p.numel() for p in self._dense), device=device)
        self._second = torch.randn(rights, generator=generator).to(device)
        self._p = self._cut(self._first, [(rows, rank) for _, (rows, _) in self._low])
        self._q = self._cut(self._second, [(cols, rank) for _, (_, cols) in self._low])
        self._flat = self._cut(self._first[lefts:], [tuple(p.shape) for p in self._dense])

    @staticmethod
    def _cut(memory: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
        parts, at = [], 0
        for shape in shapes:
            numel = int(torch.Size(shape).numel())
            parts.append(memory[at : at + numel].view(shape))
            at += numel
        return parts

    @torch.no_grad()
    def run(self) -> None:
        """Replaces every gradient by its mean over the ranks, low-rank gradients by the approximation of the mean."""
        matrices = []
        for (param, shape), error, p, q in zip(self._low, self._errors, self._p, self._q, strict=True):
            assert param.grad is not None
            matrix = error.add_(param.grad.view(shape))
            torch.mm(matrix, q, out=p)
            matrices.append(matrix)
        for param, flat in zip(self._dense, self._flat, strict=True):
            flat.copy_(param.grad)
        self._mean(self._first)
        for matrix, p, q in zip(matrices, self._p, self._q, strict=True):
            p.copy_(torch.linalg.qr(p)[0])
            torch.mm(matrix.t(), p, out=q)
        self._mean(self._second)
        for (param, _), matrix, p, q in zip(self._low, matrices, self._p, self._q, strict=True):
            result = p @ q.t()
            matrix.sub_(result)
            param.grad.copy_(result.view_as(param))
        for param, flat in zip(self._dense, self._flat, strict=True):
            param.grad.copy_(flat)

    def _mean(self, memory: Tensor) -> None:
        self._allreduce(memory)
        memory.div_(self._size)
