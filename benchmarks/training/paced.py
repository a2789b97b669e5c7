"""A training step whose compute is a timed sleep: the ranks share few cores, and real compute would contend for them.

Thread: the worker's main thread; backward runs on autograd's thread. The same model, optimizer and pace under every
system. Gradients are known constants, so that every step's result can be checked.

A layer's time is that of the layer in a training without communication: what the framework itself needs from one layer
to the next, several hundred microseconds of a cold processor with many ranks on few cores, is measured before any
system is at work, and is part of it. So such a training takes as long as its layers are said to take, and what a system
adds shows in full.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.common.systems import Place, System

#: What the gradient of a tensor adds to its rank: tensors that get mixed up are noticed.
_MARKS = 7
#: Steps without communication that tell what the framework needs between two layers.
_CALIBRATION_STEPS = 6


class Pace:
    """The clock of the emulated accelerator: how long the layers of one rank take.

    Where layers `catch_up`, a late one shortens the next, so that a pass takes its time whatever Python and the system
    under test do in between. Otherwise only the lateness of the wake-up is made up for: what happens between two layers
    (hooks, waiting for gradients) delays all that follows, as it does on an accelerator with nothing queued.
    """

    def __init__(self, catch_up: bool) -> None:
        self._catch_up = catch_up
        self._due = 0.0
        self._late = 0.0
        self._end = 0.0
        #: Where it is set: seconds from the end of a layer, or of begin(), to the next layer.
        self.gaps: list[float] | None = None
        #: Called with what ran and its begin and end in nanoseconds of the monotonic clock, where it is set.
        self.mark: Callable[[str, int, int], None] | None = None

    def begin(self) -> None:
        """A pass starts now."""
        self._due = self._end = time.perf_counter()

    def layer(self, seconds: float, work: Callable[[], None] | None = None, label: str = "") -> None:
        """Does the work of a layer and sleeps, with the GIL released, until its time is over."""
        begin = time.perf_counter_ns()
        if self.gaps is not None:
            self.gaps.append(begin * 1e-9 - self._end)
        if not self._catch_up:
            self._due = time.perf_counter() - self._late
        self._due += seconds
        if work is not None:
            work()
        left = self._due - time.perf_counter()
        if left > 0:
            time.sleep(left)
        self._end = time.perf_counter()
        self._late = self._end - self._due
        if self.mark is not None:
            self.mark(label, begin, time.perf_counter_ns())


class _PacedLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Any, *parameters: torch.Tensor) -> torch.Tensor:
        del parameters
        ctx.layer = layer
        layer.pace.layer(layer.seconds[0], label=f"forward {layer.label}")
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> Any:
        layer = ctx.layer
        layer.pace.layer(layer.seconds[1], layer.fill, f"backward {layer.label}")
        # A tensor object that nobody else holds: autograd takes its memory as the gradient instead of copying it.
        return outer[0], None, *(gradient.detach() for gradient in layer.gradients)


class Layer(nn.Module):
    """Some parameters that become ready together. `seconds`: forward, backward."""

    def __init__(self, sizes: list[int], first: int, rank: int, pace: Pace, seconds: tuple[float, float]) -> None:
        super().__init__()
        self.label = f"tensor {first}"
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(numel)) for numel in sizes])
        self._values = [torch.full((numel,), float(rank + 1 + (first + i) % _MARKS)) for i, numel in enumerate(sizes)]
        self.gradients = [torch.zeros(numel) for numel in sizes]
        self.pace = pace
        self.seconds = seconds

    def fill(self) -> None:
        """Computes the gradients."""
        torch._foreach_copy_(self.gradients, self._values)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Passes x on."""
        y: torch.Tensor = _PacedLayer.apply(x, self, *self.weights)
        return y


class PacedModel(nn.Module):
    """Layers run in an order that this rank draws anew each step ("random"), or in theirs ("same").

    `recipe`: `layers` (element counts), `forward_seconds` and `backward_seconds` of a pass, `shares` of a pass by layer
    (equal ones where absent), `order`, `seed`, `catch_up` (Pace), `scale` (by which the sizes were divided), `names` of
    the layers, `gaps` (from calibrate()).
    """

    def __init__(self, place: Place, recipe: dict[str, Any]) -> None:
        super().__init__()
        layers: list[list[int]] = recipe["layers"]
        shares: list[float] = recipe.get("shares") or [1.0 / len(layers)] * len(layers)
        passes = (recipe["forward_seconds"], recipe["backward_seconds"])
        self.scale: float = recipe.get("scale", 1.0)
        self.pace = Pace(recipe["catch_up"])
        self.layers = nn.ModuleList()
        first = 0
        gaps: list[tuple[float, float]] = recipe.get("gaps") or [(0.0, 0.0)] * len(layers)
        for sizes, share, gap in zip(layers, shares, gaps, strict=True):
            seconds = (max(share * passes[0] - gap[0], 0.0), max(share * passes[1] - gap[1], 0.0))
            self.layers.append(Layer(sizes, first, place.rank, self.pace, seconds))
            first += len(sizes)
        for layer, name in zip(self.layers, recipe.get("names", ()), strict=False):
            layer.label = name
        self._order = list(range(len(layers)))
        self._random = random.Random(recipe["seed"] * 1000 + place.rank) if recipe["order"] == "random" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One paced forward pass."""
        if self._random is not None:
            self._random.shuffle(self._order)
        self.pace.begin()
        for index in self._order:
            x = self.layers[index](x)
        return x


def calibrate(place: Place, recipe: dict[str, Any]) -> list[tuple[float, float]]:
    """Seconds that the framework needs before each layer in forward and in backward, when nothing is sent.

    Medians over a few steps; all ranks have to do it at the same time, since they share cores.
    """
    model = PacedModel(place, recipe)
    optimizer = _optimizer(model)
    steps = []
    for _ in range(1 + _CALIBRATION_STEPS):
        model.pace.gaps = []
        _step(model, model, optimizer, torch.zeros(1, requires_grad=True))
        steps.append(model.pace.gaps)
    # The first step allocates.
    gaps = [statistics.median(gaps) for gaps in zip(*steps[1:], strict=True)]
    forward, backward = gaps[: len(model.layers)], gaps[len(model.layers) :]
    return list(zip(forward, reversed(backward), strict=True))


def _optimizer(model: PacedModel) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0, foreach=True)


def _step(model: PacedModel, wrapped: Any, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss = wrapped(x).sum()
    model.pace.begin()
    loss.backward()
    optimizer.step()


class Training:
    """Model and optimizer under one system."""

    def __init__(self, place: Place, system: System, recipe: dict[str, Any]) -> None:
        self._rank, self._size = place.rank, place.size
        self._model = PacedModel(place, recipe)
        self._system = system
        self._wrapped, self._optimizer = system.train(self._model, _optimizer(self._model))
        self._input = torch.zeros(1, requires_grad=True)

    def step(self) -> None:
        """zero_grad, forward, backward, optimizer step."""
        _step(self._model, self._wrapped, self._optimizer, self._input)

    def mark_layers(self, mark: Callable[[str, int, int], None] | None) -> None:
        """Tells `mark` what runs when, until told None."""
        self._model.pace.mark = mark

    def drain(self) -> None:
        """Returns when nothing of the last step is in flight any more."""
        self._system.drain(self._optimizer)

    def check(self) -> None:
        """One step; an error unless every gradient is the mean over the ranks, or is this rank's where none is sent."""
        self.step()
        self.drain()
        mean = (self._size + 1) / 2 if self._system.averages else self._rank + 1
        for index, parameter in enumerate(self._model.parameters()):
            wanted = mean + index % _MARKS
            if parameter.grad is None or not bool((parameter.grad == wanted).all()):
                raise RuntimeError(f"the averaged gradient of tensor {index} is not {wanted}: {parameter.grad}")
