"""A training step whose compute is a timed sleep: the ranks share few cores, and real compute would contend for them.

Thread: the worker's main thread; backward runs on autograd's thread. The same model, optimizer and pace under every
system. Gradients are known constants, so that every step's result can be checked.
"""

from __future__ import annotations

import random
import time
from typing import Any

import torch
from torch import nn

from benchmarks.systems import Place, System

#: What the gradient of a tensor adds to its rank: tensors that get mixed up are noticed.
_MARKS = 7


class Pace:
    """Lets layer i of n end no earlier than (i + 1) / n of the phase. Late layers catch up."""

    def __init__(self, seconds: float, layers: int) -> None:
        self._each = seconds / layers
        self._count = 0
        self._start = 0.0

    def begin(self) -> None:
        """The phase starts now."""
        self._count = 0
        self._start = time.perf_counter()

    def layer(self) -> None:
        """Sleeps, with the GIL released, until the next layer is due."""
        self._count += 1
        left = self._start + self._count * self._each - time.perf_counter()
        if left > 0:
            time.sleep(left)


class _PacedLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Any, *parameters: torch.Tensor) -> torch.Tensor:
        del parameters
        ctx.layer = layer
        layer.forward_pace.layer()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> Any:
        ctx.layer.backward_pace.layer()
        return outer[0], None, *ctx.layer.gradients


class Layer(nn.Module):
    """Some parameters that become ready together."""

    def __init__(self, sizes: list[int], first: int, rank: int, paces: tuple[Pace, Pace]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(numel)) for numel in sizes])
        self.gradients = [torch.full((numel,), float(rank + 1 + (first + i) % _MARKS)) for i, numel in enumerate(sizes)]
        self.forward_pace, self.backward_pace = paces

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Passes x on."""
        y: torch.Tensor = _PacedLayer.apply(x, self, *self.weights)
        return y


class PacedModel(nn.Module):
    """Layers run in an order that this rank draws anew each step ("random"), or in theirs ("same")."""

    def __init__(self, place: Place, recipe: dict[str, Any]) -> None:
        super().__init__()
        layers: list[list[int]] = recipe["layers"]
        self.forward_pace = Pace(recipe["forward_seconds"], len(layers))
        self.backward_pace = Pace(recipe["backward_seconds"], len(layers))
        paces = (self.forward_pace, self.backward_pace)
        firsts = [sum(len(layer) for layer in layers[:i]) for i in range(len(layers))]
        self.layers = nn.ModuleList(
            [Layer(sizes, first, place.rank, paces) for sizes, first in zip(layers, firsts, strict=True)]
        )
        self._order = list(range(len(layers)))
        self._random = random.Random(recipe["seed"] * 1000 + place.rank) if recipe["order"] == "random" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One paced forward pass."""
        if self._random is not None:
            self._random.shuffle(self._order)
        self.forward_pace.begin()
        for index in self._order:
            x = self.layers[index](x)
        return x


class Training:
    """Model and optimizer under one system."""

    def __init__(self, place: Place, system: System, recipe: dict[str, Any]) -> None:
        self._size = place.size
        self._model = PacedModel(place, recipe)
        optimizer = torch.optim.SGD(self._model.parameters(), lr=0.0, foreach=True)
        self._wrapped, self._optimizer = system.train(self._model, optimizer)
        self._input = torch.zeros(1, requires_grad=True)

    def step(self) -> None:
        """zero_grad, forward, backward, optimizer step."""
        self._optimizer.zero_grad()
        loss = self._wrapped(self._input).sum()
        self._model.backward_pace.begin()
        loss.backward()
        self._optimizer.step()

    def check(self) -> None:
        """One step; an error unless every gradient is the mean over the ranks."""
        self.step()
        for index, parameter in enumerate(self._model.parameters()):
            wanted = (self._size + 1) / 2 + index % _MARKS
            if parameter.grad is None or not bool((parameter.grad == wanted).all()):
                raise RuntimeError(f"the averaged gradient of tensor {index} is not {wanted}: {parameter.grad}")
