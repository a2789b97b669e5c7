"""A training step whose compute is a timed sleep: the ranks share few cores, and real compute would contend for them.

Thread: the main thread of the worker; backward runs on the thread of autograd. All systems have the same model,
optimizer and pace. Gradients are known constants, so that the result of every step can be checked.

The time of a layer is its time in a training without communication. It includes the overhead of the framework from one
layer to the next, several hundred microseconds of a cold processor with many ranks on few cores, which is measured
before any system is at work. So a training without communication takes exactly the time of its layers, and the cost of
a system shows in full.
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

#: Number of different gradients: the value is rank + 1 plus the index of the tensor modulo this number, so that tensors
#: that get mixed up are detected.
_MARKS = 7
#: Steps without communication that measure the overhead of the framework between two layers.
_CALIBRATION_STEPS = 6


class Pace:
    """Clock of the emulated accelerator: durations of the layers of one rank.

    With `catch_up`, a late layer shortens the next one, so that a pass takes its time whatever Python and the system
    under test do in between. Otherwise the pace makes up only for late wake-ups: work between two layers (hooks,
    waiting for gradients) delays all later layers, as on an accelerator with an empty queue.
    """

    def __init__(self, catch_up: bool) -> None:
        self._catch_up = catch_up
        self._due = 0.0
        self._late = 0.0
        self._end = 0.0
        #: Receives, if set, the seconds from the end of a layer, or of begin(), to the next layer.
        self.gaps: list[float] | None = None
        #: Called, if set, with the label of a layer and its begin and end in nanoseconds of the monotonic clock.
        self.mark: Callable[[str, int, int], None] | None = None

    def begin(self) -> None:
        """Starts a pass."""
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
        # No other code holds this tensor object, so autograd takes its memory as the gradient instead of a copy.
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
    """Layers that run in an order that this rank draws in each step ("random"), or in their own order ("same").

    `recipe`: `layers` (element counts), `forward_seconds` and `backward_seconds` of a pass, `shares` of a pass by layer
    (equal shares if absent), `order`, `seed`, `catch_up` (Pace), `scale` (divisor of the sizes), `names` of the layers,
    `gaps` (from calibrate()).
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
        """Runs one paced forward pass."""
        if self._random is not None:
            self._random.shuffle(self._order)
        self.pace.begin()
        for index in self._order:
            x = self.layers[index](x)
        return x


def calibrate(place: Place, recipe: dict[str, Any]) -> list[tuple[float, float]]:
    """Measures the seconds of the framework before each layer in forward and in backward, without communication.

    Returns medians over a few steps. All ranks must call it at the same time, since they share cores.
    """
    model = PacedModel(place, recipe)
    optimizer = _optimizer(model)
    steps = []
    for _ in range(1 + _CALIBRATION_STEPS):
        model.pace.gaps = []
        _step(model, model, optimizer, torch.zeros(1, requires_grad=True))
        steps.append(model.pace.gaps)
    # The first step allocates memory and does not count.
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
        """Calls `mark` with label, begin and end of each layer from now on; None stops that."""
        self._model.pace.mark = mark

    def drain(self) -> None:
        """Returns when no message of the last step is in flight."""
        self._system.drain(self._optimizer)

    def check(self) -> None:
        """Makes one step; raises an error unless every gradient is right.

        The right gradient is the mean over the ranks or, if the system does not average, the gradient of this rank.
        """
        self.step()
        self.drain()
        mean = (self._size + 1) / 2 if self._system.averages else self._rank + 1
        for index, parameter in enumerate(self._model.parameters()):
            wanted = mean + index % _MARKS
            if parameter.grad is None or not bool((parameter.grad == wanted).all()):
                raise RuntimeError(f"the averaged gradient of tensor {index} is not {wanted}: {parameter.grad}")
