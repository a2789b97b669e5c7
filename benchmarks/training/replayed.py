"""Training steps whose compute is a wait, with gradients that a net once had: the processors stay free meanwhile, as on
hosts that compute on a GPU or have more cores than ranks.

Thread: the main thread of the worker; backward runs on the thread of autograd. Does not: learn. Gradients do not depend
on the parameters.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import accumulate, cycle, pairwise
from typing import Any

import torch
from torch import Tensor

from benchmarks.training.nets import Task
from benchmarks.training.paced import Pace

#: Batches whose gradients are replayed, in turns.
_BATCHES = 8


class _Replay(torch.autograd.Function):
    """A point of backward at which a parameter gets its gradient. Inputs: x of any shape, the parameter, its source."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parameter: Tensor, gradient: Callable[[], Tensor]) -> Tensor:
        del parameter
        ctx.gradient = gradient
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return outer[0], ctx.gradient(), None


class Replayed:
    """A task in place of another one, with the same model: see Task.

    Some real steps tell the gradients of each batch, the order in which they appear, and the shares of the time.
    `seconds`: time of a replayed step, forward and backward pass together.
    """

    def __init__(self, task: Task, seed: int, seconds: float) -> None:
        self.model = task.model
        self._task = task
        self._pace = Pace(catch_up=True)
        self.model.zero_grad()
        steps = [self._record(batch) for batch, _ in zip(task.batches(seed), range(_BATCHES), strict=False)]
        self._order = steps[-1][0]
        # The first step allocates memory.
        shares = [statistics.median(parts) for parts in zip(*(step[1] for step in steps[1:]), strict=True)]
        self._forward, *self._waits = [seconds * share / sum(shares) for share in shares]
        self._gradients = cycle([step[2] for step in steps])

    def _record(self, batch: tuple[Tensor, Tensor]) -> tuple[list[Tensor], list[float], list[Tensor]]:
        """Makes a real step; returns the parameters as they get gradients, the times between them, the gradients.

        The first time is that of the forward pass.
        """
        order: list[Tensor] = []
        times = [time.perf_counter()]

        def arrived(parameter: Tensor) -> None:
            order.append(parameter)
            times.append(time.perf_counter())

        hooks = [p.register_post_accumulate_grad_hook(arrived) for p in self.model.parameters()]
        loss = self._task.loss(batch)
        times.append(time.perf_counter())
        loss.backward()
        for hook in hooks:
            hook.remove()
        gradients = [p.grad.clone() for p in order if p.grad is not None]
        self.model.zero_grad()
        return order, [after - before for before, after in pairwise(times)], gradients

    def ready(self) -> list[float]:
        """Returns the seconds from the first gradient of a replayed step to that of each parameter of the model."""
        since_first = dict(zip(map(id, self._order), accumulate([0.0, *self._waits[1:]]), strict=True))
        return [since_first[id(p)] for p in self.model.parameters()]

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields nothing to read: gradients are known."""
        del seed
        return cycle([(torch.empty(0), torch.empty(0))])

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Waits for the time of a forward pass; returns a loss of 0 whose backward pass replays the next gradients."""
        del batch
        self._pace.begin()
        x = torch.zeros((), requires_grad=True)
        gradients = next(self._gradients)
        # Backward runs from the last point to the first one.
        for parts in reversed(list(zip(self._order, self._waits, gradients, strict=True))):
            x = _Replay.apply(x, parts[0], lambda parts=parts: self._ready(*parts[1:]))
        self._pace.layer(self._forward)
        self._pace.begin()
        return x

    def _ready(self, seconds: float, gradient: Tensor) -> Tensor:
        self._pace.layer(seconds)
        # Reductions work in place.
        return gradient.clone()

    def quality(self) -> float:
        """See Task."""
        return self._task.quality()

    def sample_loss(self) -> float:
        """See Task."""
        return self._task.sample_loss()
