"""SurvivingStream: stream of the gradients of one optimizer, whose steps survive the loss of a rank of an elastic job.

The wait that learns of a loss opens the next session. The step in flight counts if some rank has passed its end, which
proves that all ranks hold its results; else it is void on all ranks. Programs make the same steps in the same order on
all ranks. So the survivors compare how many steps they have begun, and a rank that is behind leaves as many out: they
are void on the others. This keeps the loops of the program in step.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

from sirtaki import _growth, basics, errors
from sirtaki.ops import ReduceOp
from sirtaki.torch._optimizer.backward_end import interruptible_wait, was_interrupted
from sirtaki.torch._optimizer.gradient_stream import GradientStream, all_streams
from sirtaki.torch._optimizer.options import ReducerOptions
from sirtaki.torch._optimizer.step_phase import Phase


class _Program:
    """Steps of all optimizers of the program."""

    ended = 0
    #: Steps that this rank has to leave out, because they are void on a rank that was ahead.
    behind = 0

    def reset(self) -> None:
        """Called when all ranks go back to a commit."""
        self.ended = self.behind = 0


_program = _Program()
basics.before_regroup(_program.reset)


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
        #: True if steps survive the loss of a rank in an elastic job, and may be void then.
        self.outlives_losses = False
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

    def _forget_count(self) -> None:
        """Called by join(): ranks with fewer batches have made fewer steps."""
        _program.reset()

    def _count_step(self) -> None:
        _program.ended += int(self.outlives_losses)
        _growth.check_snapshots()

    # ---- a loss ----

    def bears_losses(self) -> bool:
        """See GradientStream."""
        by_name = self._options.compressor is not None or (self._layout is not None and any(self._layout.sparse))
        survives = self.outlives_losses and not by_name
        return self.local is None and (survives or super().bears_losses())

    def _survives(self) -> bool:
        return basics.goes_on_after_losses() and all(stream.bears_losses() for stream in all_streams)

    def _survive(self) -> None:
        """Opens the next session with the other survivors. Raises the errors of regroup()."""
        mine = [s for s in all_streams if isinstance(s, SurvivingStream) and s.outlives_losses]
        for stream in set(all_streams).difference(mine):
            stream.abandon()  # it has never been open: see bears_losses()
        while True:
            for stream in mine:
                stream._keep()
            basics.open_next_session()
            for stream in mine:
                stream._settle()
            begun = _program.ended + sum(s._outcome is not None and s._phase is not Phase.REDUCED for s in mine)
            try:
                _program.behind = self._most(begun) - begun
                return
            except errors.RanksChangedError:
                continue  # another rank is lost

    def _most(self, number: int) -> int:
        """Returns the maximum over the ranks. Collective."""
        if self._options.size == 1:
            return number
        ops = self._options.ops
        value = torch.tensor([number], dtype=torch.int64, device="cpu")
        work = ops.allreduce(value, "sirtaki.steps_begun", ReduceOp.MAX, (1.0, 1.0), in_place=True)
        return int(ops.start_one(work).wait().item())

    def _keep(self) -> None:
        """Keeps the results of a step in flight, and what the stream holds, before the session ends."""
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

    def _settle(self) -> None:
        """Learns whether the step in flight counts, in the next session."""
        stream, self._stream, self._stream_opening = self._stream, None, None
        self.residuals.settle()
        self._ready = None
        if stream is None or self._outcome is not None:
            return
        if self._phase is Phase.IN_FLIGHT:
            self._outcome = stream.committed()
        elif self._phase is Phase.FILLING and any(self._submitted):
            self._outcome = False

    # ---- parts of a step ----

    def _opened(self, interruptible: bool) -> bool:
        """Opens the stream if need be. Returns False if this step is void, because this rank is behind."""
        self._refused.follow(self.params)
        while True:
            self._alone = self.alone or self._options.size == 1
            if self._alone or self._is_open():
                return True
            if self.outlives_losses and _program.behind > 0:
                _program.behind -= 1
                return False
            try:
                self._open(interruptible)
            except BaseException as error:
                if isinstance(error, errors.RanksChangedError) and self._survives():
                    try:
                        self._survive()
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
            if not self._survives():
                raise
            self._survive()
            return False
        return True

    def _make_void(self) -> None:
        """Leaves the step out: gradients become zeros, which clipping and scalers bear, and step() changes nothing."""
        self.void = True
        for param in self.params:
            if param.grad is not None:
                param.grad = torch.zeros_like(param.grad)
