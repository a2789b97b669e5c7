"""Acceleration: the handle that accelerate() returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from sirtaki.torch._optimizer.gradient_stream import GradientStream
from sirtaki.torch._optimizer.residuals import KEY


class Acceleration:
    """Compression and local updates of one model. Methods are those of DistributedOptimizer, documented there.

    With an optimizer, that optimizer has the same methods, and its state_dict() holds the residuals, too.
    """

    def __init__(self, reducer: GradientStream, optimizer: Any) -> None:
        self._reducer = reducer
        self._optimizer = optimizer

    @property
    def exposed_seconds(self) -> float:
        """Seconds since the start in which this rank only waited for gradients or merges."""
        owner = self._reducer if self._optimizer is None else self._optimizer
        return float(owner.exposed_seconds)

    def compression_report(self) -> list[dict[str, Any]]:
        """Returns a row for each tensor, with its codec from the next step on; [] before the first step."""
        return self._reducer.residuals.report()

    def report_loss(self, loss: float | Tensor) -> None:
        """Reports the loss of this rank to policies that use it. Not collective."""
        if self._optimizer is not None:
            self._optimizer.report_loss(loss)
            return
        self._reducer.residuals.report_loss(float(loss.detach().mean()) if isinstance(loss, Tensor) else float(loss))

    def drain(self) -> None:
        """With local_updates: makes parameters and buffers equal on all ranks. Collective."""
        if self._optimizer is not None:
            self._optimizer.drain()

    @contextmanager
    def synchronous(self) -> Iterator[None]:
        """With local_updates: returns a context in which every step averages gradients. Collective at both ends."""
        if self._optimizer is None:
            yield
            return
        with self._optimizer.synchronous():
            yield

    @contextmanager
    def global_model(self) -> Iterator[None]:
        """With local_updates: returns a context in which parameters are those that all ranks last agreed on."""
        if self._optimizer is None:
            yield
            return
        with self._optimizer.global_model():
            yield

    def local_stats(self) -> dict[str, Any]:
        """Returns interval, delay, mode, reason, rounds, waits, bytes, divergence, alarms; {} without local_updates."""
        return {} if self._optimizer is None else self._optimizer.local_stats()

    def state_dict(self) -> dict[str, Any]:
        """Returns the residuals of this rank, for a checkpoint; {} if there are none. Not collective."""
        state = self._reducer.residuals.state()
        return {} if state is None else {KEY: state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a result of state_dict(), of this rank or another. Not collective."""
        self._reducer.residuals.load(state_dict.get(KEY))

    def remove(self) -> None:
        """Ends compression and local updates; the process group averages later gradients. Collective.

        The gradients of a model without DistributedDataParallel are not combined any more.
        """
        # Synchronous steps begin with equal models and equal states of the optimizers.
        with self.synchronous():
            self._reducer.close()  # type: ignore[attr-defined]
        if self._optimizer is not None:
            self._optimizer._sirtaki_local = None
