"""Training steps whose compute is a wait, with gradients that a net once had: the processors stay free meanwhile, as on
hosts that compute on a GPU or have more cores than ranks.

Thread: the main thread of the worker; backward runs on the thread of autograd. Does not: learn. Gradients do not depend
on the parameters.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, cycle, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

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


class _Step(NamedTuple):
    """A real step: parameters as they get gradients, seconds of the forward pass and up to each gradient, gradients."""

    order: list[Tensor]
    times: list[float]
    gradients: list[Tensor]


def _record(task: Task, batch: tuple[Tensor, Tensor]) -> _Step:
    """Makes a real step on one batch; gradients are absent before and after it."""
    order: list[Tensor] = []
    times = [time.perf_counter()]

    def arrived(parameter: Tensor) -> None:
        order.append(parameter)
        times.append(time.perf_counter())

    hooks = [p.register_post_accumulate_grad_hook(arrived) for p in task.model.parameters()]
    loss = task.loss(batch)
    times.append(time.perf_counter())
    loss.backward()
    for hook in hooks:
        hook.remove()
    gradients = [p.grad.clone() for p in order if p.grad is not None]
    task.model.zero_grad()
    return _Step(order, [after - before for before, after in pairwise(times)], gradients)


class _ReplayedNet(nn.Module):
    """A net in place of another one, with its parameters, whose passes take a given time. See Replayed."""

    def __init__(self, net: nn.Module, steps: Sequence[_Step], seconds: float) -> None:
        super().__init__()
        self.net = net
        self.pace = Pace(catch_up=True)
        self._order = steps[-1].order
        # The first step allocates memory.
        shares = [statistics.median(times) for times in zip(*(step.times for step in steps[1:]), strict=True)]
        self._forward, *self._waits = [seconds * share / sum(shares) for share in shares]
        self._gradients = cycle([step.gradients for step in steps])

    def forward(self, x: Tensor) -> Tensor:
        """Waits for the time of a forward pass; returns x, whose backward pass replays the next gradients."""
        self.pace.begin()
        gradients = next(self._gradients)
        # Backward runs from the last point to the first one.
        for parts in reversed(list(zip(self._order, self._waits, gradients, strict=True))):
            x = _Replay.apply(x, parts[0], lambda parts=parts: self._ready(*parts[1:]))
        self.pace.layer(self._forward)
        return x

    def _ready(self, seconds: float, gradient: Tensor) -> Tensor:
        self.pace.layer(seconds)
        # Reductions work in place.
        return gradient.clone()

    def ready(self) -> list[float]:
        """Returns the seconds from the first gradient of a step to that of each parameter."""
        since_first = dict(zip(map(id, self._order), accumulate([0.0, *self._waits[1:]]), strict=True))
        return [since_first[id(p)] for p in self.net.parameters()]


class Replayed:
    """A task in place of another one: see Task.

    Some real steps tell the gradients of each batch, the order in which they appear, and the shares of the time.
    `seconds`: time of a replayed step, forward and backward pass together.
    """

    def __init__(self, task: Task, seed: int, seconds: float) -> None:
        self._task = task
        task.model.zero_grad()
        steps = [_record(task, batch) for batch, _ in zip(task.batches(seed), range(_BATCHES), strict=False)]
        self._net = _ReplayedNet(task.model, steps, seconds)
        #: The program may put a wrapper here.
        self.model: nn.Module = self._net

    def ready(self) -> list[float]:
        """Returns the seconds from the first gradient of a replayed step to that of each parameter of the model."""
        return self._net.ready()

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields nothing to read: gradients are known."""
        del seed
        return cycle([(torch.empty(0), torch.empty(0))])

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Returns a loss of 0 after the time of a forward pass."""
        del batch
        loss: Tensor = self.model(torch.zeros((), requires_grad=True))
        self._net.pace.begin()
        return loss

    def quality(self) -> float:
        """See Task."""
        return self._task.quality()

    def sample_loss(self) -> float:
        """See Task."""
        return self._task.sample_loss()
