"""GradientStream: stream of the gradients of one optimizer, with its layout, its opening, and waits for its results.

Base of GradientReducer, which adds hooks and steps. Used from the same thread.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sirtaki import _growth, basics, errors
from sirtaki.ops import ReduceOp
from sirtaki.process_sets import global_process_set
from sirtaki.torch._optimizer.backward_end import interruptible_wait, was_interrupted
from sirtaki.torch._optimizer.gradient_layout import StreamOpening
from sirtaki.torch._optimizer.options import ReducerOptions
from sirtaki.torch._optimizer.residuals import ResidualStore
from sirtaki.torch._optimizer.shards import whole_of
from sirtaki.torch._optimizer.step_errors import unequal_params_text
from sirtaki.torch._optimizer.survivors import all_streams
from sirtaki.torch._profiling import profiled

#: Flag of the runtime: the result is a step, not a gradient.
_STEP = 2


class GradientStream:
    """Stream of the runtime for the gradients of one optimizer; see the text of the module."""

    def __init__(self, names: list[str], params: list[Tensor], options: ReducerOptions) -> None:
        self.names = names
        self.params = params
        self._options = options
        #: Residuals of compressed gradients.
        self.residuals: Any = ResidualStore(names, params, options)
        #: Seconds in which this rank has waited for gradients.
        self.exposed_seconds = 0.0
        self._alone = True
        self._generation = -1
        self._slots: list[int] = []  # slot of a parameter in the stream; -1: combined by name
        self._strides: list[tuple[int, ...]] = []
        self._dtypes: list[torch.dtype] = []
        self._devices: list[torch.device] = []
        self._sizes: list[int] = []
        self._layout: Any = None
        self._stream: Any = None
        self._stream_opening: StreamOpening | None = None
        self._ready_order: list[int] = []
        #: Kinds of the results of a step whose session has ended.
        self._kept_flags: list[int] | None = None
        #: See Member.
        self.outlives_losses = False
        all_streams.add(self)

    @property
    def options(self) -> ReducerOptions:
        """Options of the reduction."""
        return self._options

    def bears_losses(self) -> bool:
        """Returns True if the loss of a rank leaves the stream alike on all survivors: it has never been open."""
        return self._layout is None and self._options.process_set == global_process_set

    @property
    def stream_name(self) -> str:
        """Name of the stream; the same on all ranks."""
        return self._options.stream_name

    @property
    def order(self) -> tuple[Any, ...]:
        """Implements BackwardParticipant."""
        return self._options.stream_name, self._options.process_set.wire() or ()

    def mean_loss(self, loss: Any) -> Any:
        """Returns the mean over the ranks of the loss of a closure: a tensor, a number or None. Collective."""
        if loss is None or self._options.size == 1:
            return loss
        mine = (
            loss.detach().clone()
            if isinstance(loss, Tensor)
            else torch.tensor(float(loss), dtype=torch.float64, device="cpu")
        )
        ops = self._options.ops
        work = ops.allreduce(mine, f"{self.stream_name}.loss", ReduceOp.AVERAGE, (1.0, 1.0), in_place=True)
        mean = ops.start_one(work).wait()
        return mean if isinstance(loss, Tensor) else mean.item()

    @profiled("wait_tensors")
    def fetch(self, indices: Sequence[int]) -> None:
        """Waits for some gradients of the deferred step."""
        begin = time.perf_counter()
        try:
            self._stream.wait_tensors([self._slots[i] for i in indices])
        except KeyboardInterrupt:
            raise
        except BaseException:
            # Raises the same error, and ends the step.
            with suppress(errors.SirtakiError):
                self._stream.wait()
            raise
        finally:
            self.exposed_seconds += time.perf_counter() - begin

    @profiled("wait_deferred")
    def end_deferred(self, timeout_ms: int = -1) -> None:
        """Waits for all gradients of the deferred step; the next one may begin."""
        begin = time.perf_counter()
        try:
            self._stream.wait(timeout_ms)
            self.residuals.steps += 1
        finally:
            self.exposed_seconds += time.perf_counter() - begin

    def used(self) -> list[bool]:
        """Returns True for each parameter with a gradient on any rank; valid for those fetched."""
        flags = self._flags()
        return [slot >= 0 and flags[slot] > 0 for slot in self._slots]

    def _flags(self) -> list[int]:
        return self._stream.used() if self._kept_flags is None else self._kept_flags

    def momentum_corrected(self) -> set[int]:
        """Returns ids of the parameters whose results are steps of SGD with momentum; see MomentumCorrection."""
        ended = self._stream is None and self._kept_flags is None
        if self._alone or ended or max(self._slots, default=-1) < 0:
            return set()
        flags = self._flags()
        places = zip(self.params, self._slots, strict=True)
        return {id(whole_of(param)) for param, slot in places if slot >= 0 and flags[slot] == _STEP}

    def skips(self, error: BaseException) -> bool:
        """Returns True if the option compression.nonfinite skips a step with this error, on all ranks."""
        return isinstance(error, errors.NonFiniteError) and basics.option("compression.nonfinite") == "skip"

    def _current(self) -> bool:
        return self._generation == basics.generation()

    def _is_open(self) -> bool:
        return self._stream is not None and self._current()

    def _forget_stream(self) -> None:
        if self._is_open() and basics.is_initialized():
            self._stream.close()
        self._stream = self._stream_opening = None
        self.residuals.stream_closed()

    def abandon(self) -> None:
        """Gives up the stream, because its session ends or the program goes back. Never raises."""
        with suppress(errors.SirtakiError):
            self._forget_stream()
        self._stream = self._stream_opening = None
        self.residuals.stream_closed()

    @profiled("open_stream")
    def _open(self, interruptible: bool) -> None:
        """Agrees with the other ranks on the layout. Collective. Continues an interrupted opening."""
        self._stream = None
        self.residuals.stream_closed()
        begin = time.perf_counter()
        try:
            if self._stream_opening is None or self._stream_opening.generation != basics.generation():
                options = replace(self._options, first_step=self.residuals.steps)
                self._stream_opening = StreamOpening(
                    self.names, self.params, options, self._ready_order, self.residuals.has_loaded_state
                )
            with interruptible_wait() if interruptible else nullcontext():
                layout = self._layout = self._stream_opening.finish()
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt) and not (interruptible and was_interrupted(error)):
                self._stream_opening = None
            raise
        finally:
            self.exposed_seconds += time.perf_counter() - begin
        self._stream_opening = None
        self._slots, self._strides, self._dtypes = layout.slots, layout.strides, layout.dtypes
        self._sizes, self._stream = layout.sizes, layout.stream
        self._devices = layout.devices
        self._generation = basics.generation()
        self.residuals.stream_opened(layout.stream, layout.slots, layout.flag)
        self._handle_unequal_models(layout.unequal)

    def _handle_unequal_models(self, indices: list[int]) -> None:
        """Applies the option torch.unequal_models. `indices`, of unequal parameters, are the same on all ranks."""
        how = basics.option("torch.unequal_models") if indices else "ignore"
        if how == "ignore":
            return
        if how == "broadcast":
            ops = self._options.ops
            work = [
                ops.broadcast(self.params[i], ops.job_rank(0), f"{self.stream_name}.first.{i}", in_place=True)
                for i in indices
            ]
            for handle in ops.start(work):
                handle.wait()
            return
        text = unequal_params_text(self.names[indices[0]], len(indices), len(self.params))
        if how == "error":
            self._forget_stream()
            raise errors.MismatchError(text, tensor=self.names[indices[0]])
        if self._options.rank == 0:
            warnings.warn(text, stacklevel=2)


def _abandon_all() -> None:
    for stream in list(all_streams):
        stream.abandon()


basics.before_regroup(_abandon_all)


def _keep_residuals() -> None:
    for stream in list(all_streams):
        stream.residuals.keep()


_growth.before_change(_keep_residuals)
