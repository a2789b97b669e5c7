"""Steps of streams of one large tensor, each compressed by another method, on one rank. Runs inside worker processes.

Thread: the main thread of the worker. Streams are driven without an optimizer, so that the times include no pass of
torch over the gradient. Every step starts with the same gradient, which the step overwrites with the result.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.common.systems import Place, System

#: Name of the method that is the dense all-reduce of torch.
GLOO = "gloo"
_ROW = 4096


class Streams:
    """One gradient, and a stream for each of `methods` (name to text of the compression)."""

    def __init__(
        self, place: Place, systems: Mapping[str, System], methods: Mapping[str, str], numel: int, seed: int
    ) -> None:
        from sirtaki import _core
        from sirtaki.ops import ReduceOp
        from sirtaki.torch._adapter import wire_type_of

        generator = torch.Generator().manual_seed(1000 * seed + place.rank)
        # Like gradients: many small values, few large ones.
        self._given = torch.randn(numel, generator=generator)
        self._given *= torch.rand(numel, generator=generator).pow_(4).mul_(1e-2)
        self._memory = torch.zeros(numel)
        self._one = torch.zeros(1)
        self._systems = systems
        self._streams: dict[str, Any] = {}
        for method, text in methods.items():
            if method != GLOO:
                tensors = [(0, wire_type_of(torch.float32).code, 0, 0, (numel // _ROW, _ROW), None)]
                how = (int(ReduceOp.AVERAGE), 1.0, 1.0, text, 0)
                self._streams[method] = _core.Stream(f"compressed.{method}", ["gradient"], tensors, [0], how)

    def run(self, method: str, steps: int) -> float:
        """Runs steps; returns the seconds a step, from the gradient to the result."""
        total = 0.0
        for _ in range(steps):
            self._memory.copy_(self._given)
            self._systems["gloo" if method == GLOO else "sirtaki"].allreduce(self._one, "compressed.together")
            begin = time.perf_counter()
            self._step(method)
            total += time.perf_counter() - begin
        return total / steps

    def check(self, method: str) -> list[float]:
        """Makes one step; returns the sums of the result, of its magnitudes, and of its products with the gradient.

        The gradient is that of this rank.
        """
        self.run(method, 1)
        result = self._memory.double()
        return [float(result.sum()), float(result.abs().sum()), float(result @ self._given.double())]

    def _step(self, method: str) -> None:
        if method == GLOO:
            self._systems["gloo"].allreduce(self._memory, method)
            return
        stream = self._streams[method]
        stream.ready(0, self._memory.data_ptr(), False)
        stream.finish()
        stream.wait()
