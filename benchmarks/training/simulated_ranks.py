"""Trainings of several ranks in one process: the gradients of all ranks, one exchange a tensor, one optimizer.

Thread: that of the caller. Ranks have the same model, so one is enough. Does not: measure times, or send anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.training.learning import ZERO_FROM
from benchmarks.training.nets import Task, make_model, make_task
from benchmarks.training.optimizers import make_optimizer
from benchmarks.training.simulated_codecs import Dense, Exchange, Level

#: Loss of a training whose loss is not finite any more, from there on.
DIVERGED = 100.0
_MOMENTUM = 0.9


@cache
def tasks_of(net: str, batch: int, ranks: int) -> list[Task]:
    """Returns the data of every rank; trainings put their own model into each."""
    return [make_task(net, batch, rank, ranks) for rank in range(ranks)]


def is_compressed(p: Tensor) -> bool:
    """Tells whether codecs compress a gradient; the defaults of the keys `ndim` and `min`."""
    return p.dim() >= 2 and p.numel() >= ZERO_FROM


def rate_at(recipe: dict[str, Any], step: int) -> float:
    """Learning rate of a step: it rises linearly for the steps of `warm_up`, then falls linearly to 0."""
    lr, steps, warm_up = recipe["lr"], recipe["steps"], recipe.get("warm_up", 0)
    return float(lr * (step + 1) / warm_up if step < warm_up else lr * (steps - step) / (steps - warm_up))


def optimizer_of(name: str, model: nn.Module, lr: float, corrected: bool) -> torch.optim.Optimizer:
    """Makes an optimizer by name. `corrected`: codecs keep the momentum of the tensors that they compress."""
    everything = list(model.parameters())
    if name == "sgd":
        groups = [
            {"params": [p for p in everything if not is_compressed(p)], "momentum": _MOMENTUM},
            {"params": [p for p in everything if is_compressed(p)], "momentum": 0.0 if corrected else _MOMENTUM},
        ]
        return torch.optim.SGD(groups, lr=lr, fused=True)
    if corrected:
        raise ValueError(f"momentum correction belongs to SGD, not to '{name}'")
    if name == "adam":
        return torch.optim.Adam(everything, lr=lr, fused=True)
    return make_optimizer(model, name, lr, _MOMENTUM)


class SimulatedRanks:
    """One training.

    `recipe`: net, batch (of a rank), seed, optimizer, lr and warm_up (see rate_at()), steps.
    """

    def __init__(self, ranks: int, recipe: dict[str, Any], level: Level) -> None:
        self._recipe = recipe
        torch.manual_seed(recipe["seed"])
        self._model = make_model(recipe["net"])
        # Batch norm has the statistics of the samples of one rank.
        norms = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self._model.modules())
        self._linear = level.linear and not norms
        self._tasks = tasks_of(recipe["net"], recipe["batch"], ranks)
        for task in self._tasks:
            task.model = self._model
        self._batches = [task.batches(recipe["seed"]) for task in self._tasks]
        self._params = list(self._model.parameters())
        self._exchanges: list[Exchange] = [
            level.open(p.shape, ranks) if is_compressed(p) else Dense(p.shape, ranks) for p in self._params
        ]
        self._optimizer = optimizer_of(recipe["optimizer"], self._model, recipe["lr"], level.momentum > 0)
        rows = 1 if self._linear else ranks
        self._gradients = [torch.zeros(rows, *p.shape) for p in self._params]
        self._done = 0

    @property
    def sent_share(self) -> float:
        """Bytes that a rank sends in a step, relative to float32 in an all-reduce."""
        dense = sum(Dense(p.shape, len(self._tasks)).sent for p in self._params)
        return sum(exchange.sent for exchange in self._exchanges) / dense

    def step(self) -> float:
        """Makes one step on the next batches; returns the mean loss of the ranks."""
        loss = self._backward([next(batches) for batches in self._batches])
        with torch.no_grad():
            for p, exchange, gradients in zip(self._params, self._exchanges, self._gradients, strict=True):
                p.grad = exchange.mean(gradients)
        for group in self._optimizer.param_groups:
            group["lr"] = rate_at(self._recipe, self._done)
        self._optimizer.step()
        self._done += 1
        return loss

    def _backward(self, batches: Sequence[tuple[Tensor, Tensor]]) -> float:
        if self._linear:
            # The mean gradient is that of all samples at once, since ranks have as many each.
            inputs, labels = zip(*batches, strict=True)
            batches = [(torch.cat(inputs), torch.cat(labels))]
        total = 0.0
        for row, batch in enumerate(batches):
            for p, gradients in zip(self._params, self._gradients, strict=True):
                p.grad = gradients[row].zero_()
            loss = self._tasks[row].loss(batch)
            loss.backward()
            total += float(loss.detach())
        return total / len(batches)


def train(ranks: int, recipe: dict[str, Any], level: Level) -> list[float]:
    """Trains; returns the loss of every step, DIVERGED from the first one that is not finite."""
    training = SimulatedRanks(ranks, recipe, level)
    losses: list[float] = []
    while len(losses) < recipe["steps"]:
        loss = training.step()
        if not math.isfinite(loss):
            return losses + [DIVERGED] * (recipe["steps"] - len(losses))
        losses.append(min(loss, DIVERGED))
    return losses
