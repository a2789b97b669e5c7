"""Acceleration: the handle that accelerate() returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from sirtaki.torch._optimizer.gradient_stream import GradientStream
from sirtaki.torch._optimizer.residuals import KEY


class Acceleration:
    """Compression and local updates of one model. Methods are those of DistributedOptimizer, documented there.

    The optimizers of the model have the same methods, and their state_dict() holds residuals, too. See accelerate(),
    which makes it.
    """

    def __init__(self, reducer: GradientStream, optimizers: Sequence[Any]) -> None:
        self._reducer = reducer
        self._optimizers = list(optimizers)

    @property
    def exposed_seconds(self) -> float:
        """Seconds since the start in which this rank only waited for gradients or merges."""
        locals_ = [one._sirtaki_local for one in self._optimizers if one._sirtaki_local is not None]
        return self._reducer.exposed_seconds + sum(local.exposed_seconds for local in locals_)

    def compression_report(self) -> list[dict[str, Any]]:
        """Returns a row for each tensor, with its codec from the next step on; [] before the first step."""
        return list(self._reducer.residuals.report())

    def report_loss(self, loss: float | Tensor) -> None:
        """Reports `loss`, that of this rank in this step, to policies that use it. Not collective."""
        for optimizer in self._optimizers:
            optimizer.report_loss(loss)
        if not self._optimizers:
            number = float(loss.detach().mean()) if isinstance(loss, Tensor) else float(loss)
            self._reducer.residuals.report_loss(number)

    def drain(self) -> None:
        """With local_updates: makes parameters and buffers equal on all ranks. Collective."""
        for optimizer in self._optimizers:
            optimizer.drain()

    @contextmanager
    def synchronous(self) -> Iterator[None]:
        """With local_updates: returns a context in which every step averages gradients. Collective at both ends."""
        with ExitStack() as stack:
            for optimizer in self._optimizers:
                stack.enter_context(optimizer.synchronous())
            yield

    @contextmanager
    def global_model(self) -> Iterator[None]:
        """With local_updates: returns a context in which parameters are those that all ranks last agreed on."""
        with ExitStack() as stack:
            for optimizer in self._optimizers:
                stack.enter_context(optimizer.global_model())
            yield

    def local_stats(self) -> dict[str, Any]:
        """Returns the statistics of local updates of the first optimizer; {} without local_updates."""
        return self._optimizers[0].local_stats() if self._optimizers else {}

    def prepare_checkpoint(self) -> None:
        """Makes the states of one rank a checkpoint for all, until the next step. Collective.

        It calls drain() and sums the residuals of all ranks for state_dict(), of the optimizers and of this handle.
        Call it on all ranks before one of them saves.
        """
        self.drain()
        self._reducer.residuals.gather_for_state()

    def state_dict(self) -> dict[str, Any]:
        """Returns the residuals of this rank, for a checkpoint; {} if there are none. Not collective."""
        state = self._reducer.residuals.state()
        return {} if state is None else {KEY: state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a `state_dict` that state_dict() gave, on this rank or another. Not collective."""
        self._reducer.residuals.load(state_dict.get(KEY))

    def keep_reducer_off(self) -> None:
        """Switches the reducer of DistributedDataParallel off again while ranks make steps alone. Not collective.

        For trainers that switch it on after each forward pass; a program does not need it.
        """
        reducer: Any = self._reducer
        if reducer.is_off():
            reducer.follow_parts()

    def remove(self) -> None:
        """Ends compression and local updates; the process group averages later gradients. Collective.

        The gradients of a model without DistributedDataParallel are not combined any more.
        """
        # Synchronous steps begin with equal models and equal states of the optimizers.
        with self.synchronous():
            self._reducer.close()  # type: ignore[attr-defined]
        for optimizer in self._optimizers:
            optimizer._sirtaki_local = None
