"""SurvivingStream: stream of the gradients of one optimizer, whose steps survive the loss of a rank of an elastic job.

The wait that learns of a loss opens the next session. The step in flight counts if some rank has passed its end, which
proves that all ranks hold its results; else it is void on all ranks. `survivors` keeps the loops of the program in
step.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

from sirtaki import _growth, errors
from sirtaki.torch._optimizer.backward_end import interruptible_wait, was_interrupted
from sirtaki.torch._optimizer.gradient_stream import GradientStream
from sirtaki.torch._optimizer.options import ReducerOptions
from sirtaki.torch._optimizer.step_phase import Phase
from sirtaki.torch._optimizer.survivors import survivors


class SurvivingStream(GradientStream):
    """Stream of the gradients of one optimizer; see the text of the module. GradientReducer adds hooks and steps."""

    alone: bool
    local: Any
    _phase: Phase
    _ready: Any
    _submitted: bytearray

    def __init__(self, names: list[str], params: list[Tensor], options: ReducerOptions) -> None:
        # It imports torch._dynamo, as optimizers of torch do; programs without an optimizer start in half the time.
        from sirtaki.torch._optimizer.wrappers import RefusedWrappers

        super().__init__(names, params, options)
        self._refused = RefusedWrappers()
        self._forget_loss()

    def _reset(self) -> None:
        """Forgets the step."""
        raise NotImplementedError

    def _forget_loss(self) -> None:
        """Called when a step begins."""
        #: Fate of the step in flight: it counts, or it is void; None: no rank was lost.
        self._outcome: bool | None = None
        self._kept_flags = None
        #: The step that is reduced is void.
        self.void = False

    def _count_step(self) -> None:
        survivors.steps += int(self.outlives_losses)
        _growth.check_snapshots()

    # ---- a loss ----

    def bears_losses(self) -> bool:
        """See GradientStream."""
        by_name = self._options.compressor is not None or (self._layout is not None and any(self._layout.sparse))
        survives = self.outlives_losses and not by_name
        return self.local is None and (survives or super().bears_losses())

    def keep(self) -> None:
        """Implements Member."""
        if not self._is_open():
            return
        if self._phase is Phase.IN_FLIGHT and self._outcome is None:
            # Returns when the runtime has left the memory of the step alone.
            with suppress(errors.SirtakiError):
                self._stream.wait()
                self._outcome = True
        if self._phase in (Phase.IN_FLIGHT, Phase.REDUCED) and self._kept_flags is None:
            with suppress(errors.SirtakiError):
                self._kept_flags = self._stream.used()
        self.residuals.keep()

    def settle(self) -> None:
        """Implements Member."""
        stream, self._stream, self._stream_opening = self._stream, None, None
        self.residuals.settle()
        self._ready = None
        if stream is None or self._outcome is not None:
            return
        if self._phase is Phase.IN_FLIGHT:
            self._outcome = stream.committed()
        elif self._phase is Phase.FILLING and any(self._submitted):
            self._outcome = False

    def has_begun(self) -> bool:
        """Implements Member."""
        return self._outcome is not None and self._phase is not Phase.REDUCED

    # ---- parts of a step ----

    def _opened(self, interruptible: bool) -> bool:
        """Opens the stream if need be. Returns False if this step is void, because this rank is behind."""
        self._refused.follow(self.params)
        while True:
            self._alone = self.alone or self._options.size == 1
            if self._alone or self._is_open():
                return True
            if self.outlives_losses and survivors.behind > 0:
                survivors.behind -= 1
                return False
            try:
                self._open(interruptible)
            except BaseException as error:
                if isinstance(error, errors.RanksChangedError) and survivors.go_on():
                    try:
                        survivors.regroup()
                    except BaseException:
                        self._reset()
                        raise
                    continue
                if not (interruptible and was_interrupted(error)):
                    self._reset()
                raise

    def _await_step(self, interruptible: bool) -> bool:
        """Waits for the step in flight. Returns False if its session has ended: `_outcome` then has its fate."""
        if self._outcome is not None:
            return False
        try:
            with interruptible_wait() if interruptible else nullcontext():
                self._stream.wait()
        except errors.RanksChangedError:
            if not survivors.go_on():
                raise
            survivors.regroup()
            return False
        return True

    def _make_void(self) -> None:
        """Leaves the step out: gradients become zeros, which clipping and scalers bear, and step() changes nothing."""
        self.void = True
        for param in self.params:
            if param.grad is not None:
                param.grad = torch.zeros_like(param.grad)
