"""GradientReducer: combines the gradients of one optimizer over all ranks while backward runs.

A hook of every parameter runs when its gradient is complete. Dense gradients go into a stream (the same tensors in
every step, planned once); sparse ones, and all with a compressor of the program, are combined by name. The kinds of the
parameters are agreed at the end of the first backward, together with the order in which gradients become ready, so
overlap begins with the second step.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor

from sirtaki import basics, errors
from sirtaki.ops import ReduceOp
from sirtaki.torch._optimizer.backward_end import call_at_backward_end, was_interrupted
from sirtaki.torch._optimizer.options import ReducerOptions
from sirtaki.torch._optimizer.shards import whole_of
from sirtaki.torch._optimizer.step import Deferred, StepBuffers, start_gather
from sirtaki.torch._optimizer.step_errors import (
    SUPERSEDED,
    changed_param_text,
    early_join_text,
    edited_grad_text,
    extra_backward_text,
    late_gradients_text,
    stale_param_text,
    uncombined_grad_text,
)
from sirtaki.torch._optimizer.step_phase import Phase
from sirtaki.torch._optimizer.survival import SurvivingStream
from sirtaki.torch._optimizer.user_compressor import Packed, exchange, pack
from sirtaki.torch._param_ownership import param_owners
from sirtaki.torch._profiling import profiled

_HANDED_OVER, _STALE = 1, 2


class GradientReducer(SurvivingStream):
    """Combines the gradients of one optimizer; see the text of the module. Used from the thread that runs backward."""

    _backward_open: bool
    _passes: int

    def __init__(self, names: list[str], params: list[Tensor], options: ReducerOptions) -> None:
        super().__init__(names, params, options)
        self.deferred: Deferred | None = None
        #: LocalSgd of the optimizer, or None; closed with the reducer.
        self.local: Any = None
        self.passes_per_step = 1
        #: True while this rank makes steps by itself and sends no gradients.
        self.alone = False
        self._no_sync_depth = 0
        self._known = {id(whole_of(p)) for p in params}
        self._superseded = False
        #: Backward of another rank does not reach these parameters, so step() waits with sync="backward", too.
        self._late = False
        self._reset()
        param_owners.claim(self, [whole_of(p) for p in params])
        self._hooks = [self._hook(i) for i in range(len(params))]

    # ---- what the optimizer calls ----

    def set_no_sync(self, entered: bool) -> None:
        """Enters or leaves a region in which backward only accumulates on this rank. Regions nest."""
        self._no_sync_depth += 1 if entered else -1

    def check_add(self) -> None:
        """Called before add(): refuses while there are gradients that are not applied."""
        if self._phase is not Phase.IDLE:
            raise RuntimeError(
                "add_param_group() between backward() and step() would combine gradients twice; call step() first"
            )

    def add(self, name: str, param: Tensor) -> None:
        """Adds a parameter, from the next step on."""
        self.names.append(name)
        self.params.append(param)
        param_owners.claim(self, [param])
        self._known.add(id(param))
        self._hooks.append(self._hook(len(self.params) - 1))
        self._refused.allow()
        self._forget_stream()
        self._reset()

    def close(self) -> None:
        """Removes the hooks and closes the stream; a step in flight ends with an error."""
        self.unhook()
        if self.local is not None:
            self.local.close()
        param_owners.release(self)
        self._forget_stream()
        self._reset()

    def optimizer_gone(self) -> None:
        """Called when nobody uses the optimizer any more."""
        self.close()

    def abandon(self) -> None:
        """Gives up the step and the stream. Never raises."""
        with suppress(errors.SirtakiError):
            self.fail_backward(f"rank {basics.rank()} goes back to its last commit")
        super().abandon()
        self._late = False
        self._reset()

    def unhook(self) -> None:
        """Removes the hooks: gradients are left to the program."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._refused.allow()

    def supersede(self) -> None:
        """Implements Owner."""
        # Work of a session that has ended is void.
        with suppress(errors.NotInitializedError):
            if self.deferred is not None:
                self.deferred.finish_updates()
        # Gradients of a step that another rank has aborted are not needed here either.
        with suppress(errors.NotInitializedError, errors.AbortedError):
            if self._phase is Phase.IN_FLIGHT:
                self._wait()
            elif self._phase is Phase.FILLING and self._backward_open:
                self.give_up()
        self.close()
        self._superseded = True

    def check_join(self) -> None:
        """Implements Owner. The runtime itself checks an open stream."""
        if self._phase is Phase.ENDED:
            raise errors.InvalidArgumentError(early_join_text(basics.rank()))

    def check_step(self, groups: Sequence[dict[str, Any]]) -> None:
        """Refuses gradients that the optimizer would apply although they are not combined. Raises RuntimeError."""
        if self._superseded:
            raise RuntimeError(SUPERSEDED)
        known = self._known
        strays = [p for group in groups for p in group["params"] if id(p) not in known and p.grad is not None]
        if strays:
            raise RuntimeError(uncombined_grad_text(groups, strays[0]))

    @property
    def reduced(self) -> bool:
        """True if the gradients are combined and no step was made since."""
        return self._phase is Phase.REDUCED

    def synchronize(self) -> None:
        """Combines the gradients that are not combined yet, and waits. Collective unless `reduced`."""
        if self._phase is Phase.REDUCED:
            return
        if self._phase is Phase.FILLING and self._backward_open:
            self.give_up()
            raise RuntimeError(
                "backward() ended with an exception, so there are no gradients to apply; call zero_grad() and run "
                "backward() again"
            )
        self._combine(interruptible=False)

    def _combine(self, interruptible: bool) -> None:
        if self._phase is not Phase.IN_FLIGHT:
            self._finish(interruptible)
        self._wait(interruptible)

    def stepped(self) -> None:
        """Called after the optimizer has applied the gradients."""
        self._reset()

    def defer(self) -> StepBuffers | None:
        """Submits the step without waiting and gives its buffers away, until end_deferred().

        Returns None if the gradients are combined already: some are sparse, they were combined before, or this rank is
        alone.
        """
        if self._phase in (Phase.IDLE, Phase.ENDED) or (self._phase is Phase.FILLING and not self._backward_open):
            self._finish()
        travels = self._phase is Phase.IN_FLIGHT and not self._alone
        if not travels or self._sparse or any(self._layout.densified) or self._edited():
            self.synchronize()
            return None
        memory = StepBuffers(self._grads, self._versions, self._send_buffers)
        self._reset()
        return memory

    def mark_stale(self, index: int) -> None:
        """Marks a parameter whose update is pending: its gradient in this backward is an error."""
        self._submitted[index] = _STALE

    def check_between_steps(self, what: str) -> None:
        """Refuses `what` while gradients are submitted or in flight. Raises RuntimeError."""
        if self.in_flight or self._backward_open:
            raise RuntimeError(
                f"{what} between backward() and step(), while gradients are in flight; call step() first"
            )

    @property
    def in_flight(self) -> bool:
        """True if the gradients of a backward are not combined yet and must not be touched."""
        return self._phase in (Phase.ENDED, Phase.IN_FLIGHT)

    def check_zero_grad(self) -> None:
        """Called before zero_grad(): refuses while gradients are in flight; aborts a backward that failed half-way."""
        if self.in_flight:
            raise RuntimeError(
                "zero_grad() between backward() and step() would clear gradients that the runtime is still working on; "
                "call step() or synchronize() first"
            )
        if self._phase is Phase.FILLING and self._backward_open:
            self.give_up()
        else:
            self._reset()

    def give_up(self, why: str = "") -> None:
        """Aborts the unfinished step on all ranks; the others get AbortedError with `why`."""
        # The runtime uses the memory until abort() has returned.
        in_use = (self._grads, self._send_buffers)
        self._reset()
        if self._is_open() and basics.is_initialized():
            self._stream.abort(why or f"backward() failed on rank {basics.rank()}")
        del in_use

    # ---- hooks ----

    def _hook(self, index: int) -> Any:
        def on_gradient(param: Tensor) -> None:
            # Runs for each parameter in each step, so the common case takes as few operations as possible.
            ready = self._ready
            if ready is not None and not self._submitted[index]:
                grad: Any = param.grad
                plain = grad is not None and not grad.is_sparse and grad.dtype is self._dtypes[index]
                plain = plain and grad.device == self._devices[index]
                # Number of elements and strides determine the shape, because gradients leave no gaps in memory.
                same = plain and grad.numel() == self._sizes[index] and grad.stride() == self._strides[index]
                # A view that negates or conjugates has other values than its memory.
                same = same and not grad.is_neg() and not grad.is_conj()
                if same and self._slots[index] >= 0:
                    self._submitted[index] = _HANDED_OVER
                    self._grads[index] = grad
                    self._versions[index] = grad._version
                    ready(self._slots[index], grad.data_ptr())
                    return
            self._on_gradient(index)

        return self.params[index].register_post_accumulate_grad_hook(on_gradient)

    def _on_gradient(self, index: int) -> None:
        if not self._backward_open:
            self._begin_backward(index)
        if self._submitted[index] == _STALE:
            assert self.deferred is not None
            self.deferred.abandon()
            raise RuntimeError(stale_param_text(self.names[index]))
        if self._no_sync_depth or self._passes < self.passes_per_step or self._alone:
            return
        if not self._is_open():
            self._ready_order.append(index)
            return
        self._ready = self._stream.ready
        self._hand_over(index)

    def _begin_backward(self, index: int) -> None:
        if self.in_flight:
            raise RuntimeError(extra_backward_text(self.names[index], self.passes_per_step))
        if self.deferred is not None:
            self.deferred.before_backward()
        if self._phase is Phase.REDUCED:
            if self._options.op is not ReduceOp.AVERAGE:
                raise RuntimeError(extra_backward_text(self.names[index], self.passes_per_step))
            self._reset()
        self._backward_open = True
        call_at_backward_end(self)
        self._alone = self.alone or self._options.size == 1
        if self._no_sync_depth:
            return
        self._phase = Phase.FILLING
        self._passes += 1
        if self._passes > self.passes_per_step:
            raise RuntimeError(extra_backward_text(self.names[index], self.passes_per_step))

    # ---- the end of a backward: see Member ----

    def finish_backward(self) -> None:
        """Implements BackwardParticipant."""
        self._backward_open = False
        self._ready = None
        if self.deferred is not None:
            self._complete(self.deferred)
        if self._phase is not Phase.FILLING or self._no_sync_depth or self._passes < self.passes_per_step:
            return
        if self._alone or self._is_open():
            self._finish()
            return
        # Opening a stream is collective, so it waits until synchronize().
        self._phase = Phase.ENDED
        for index, param in enumerate(self.params):
            if param.grad is not None:
                self._grads[index], self._versions[index] = param.grad, param.grad._version

    def wait_at_backward_end(self) -> None:
        """Implements BackwardParticipant."""
        if self._options.sync != "backward" or self._late or not self.in_flight:
            return
        try:
            self._combine(interruptible=param_owners.has_several())
        except BaseException as error:
            if not was_interrupted(error):
                raise
            self._late = True
            warnings.warn(late_gradients_text(self.names[0]), stacklevel=2)

    def fail_backward(self, why: str) -> None:
        """Implements BackwardParticipant."""
        if self.in_flight or (self._phase is Phase.FILLING and self._backward_open):
            self.give_up(why)

    def _complete(self, deferred: Deferred) -> None:
        for index, state in enumerate(self._submitted):
            if state == _STALE:
                self._submitted[index] = 0
        deferred.finish_updates()

    # ---- one step ----

    def _reset(self) -> None:
        self._phase = Phase.IDLE
        self._passes = 0
        self._forget_loss()
        #: The program has called synchronize() itself.
        self.synchronized_by_program = False
        self._backward_open = False
        self._edited_early: list[str] = []  # gradients that were changed before they could be submitted
        self._forget_memory()
        self._sparse: list[int] = []  # submitted in this step
        self._ready_order = []

    def _forget_memory(self) -> None:
        count = len(self.params)
        #: Stream.ready while hooks may submit gradients, else None.
        self._ready = None
        self._submitted = bytearray(count)
        self._grads: list[Tensor | None] = [None] * count
        self._versions = [0] * count
        #: Sent instead of the memory of the gradient: another layout, or zeros without a gradient.
        self._send_buffers: dict[int, Tensor] = {}
        self._packed: dict[int, Packed] = {}

    @profiled("finish_backward")
    def _finish(self, interruptible: bool = False) -> None:
        """Submits the gradients that the hooks have not, and tells the runtime that the step is complete."""
        if self._superseded:
            raise RuntimeError(SUPERSEDED)
        if self.deferred is not None:
            self._complete(self.deferred)
        self._ready = None
        if self._outcome is None and not self._opened(interruptible):
            self._outcome = False
        if self._outcome is not None:
            self._phase = Phase.IN_FLIGHT
            return
        if self._phase is Phase.ENDED:
            self._edited_early, self._grads = self._edited(), [None] * len(self.params)
        self._phase = Phase.IN_FLIGHT
        if self._alone:
            self.residuals.add_to_gradients()
            return
        begin = time.perf_counter()
        try:
            for index in range(len(self.params)):
                if not self._submitted[index]:
                    self._hand_over(index)
            self._stream.finish()
        except BaseException as error:
            if self._phase is Phase.IN_FLIGHT:
                self.give_up(f"{type(error).__name__} on rank {basics.rank()} after backward()")
            raise
        self.exposed_seconds += time.perf_counter() - begin

    def _hand_over(self, index: int) -> None:
        if self._submitted[index]:
            raise RuntimeError(extra_backward_text(self.names[index], self.passes_per_step))
        self._submitted[index] = _HANDED_OVER
        if self._layout.sparse[index]:
            self._sparse.append(index)
            return
        if not self._layout.matches(index, self.params[index]):
            self._refuse_change(index)
        grad = self._dense(index)
        if self._slots[index] < 0:
            self._packed[index] = pack(self.params[index], self.names[index], self._options.compressor)
            return
        send_buffer = self._layout.send_buffer(index, grad)
        if grad is not None:
            self._grads[index], self._versions[index] = grad, grad._version
        if send_buffer is not grad:
            self._send_buffers[index] = send_buffer
        self._stream.ready(self._slots[index], send_buffer.data_ptr(), grad is None)

    def _refuse_change(self, index: int) -> None:
        param, agreed = self.params[index], self._layout
        before = (agreed.shapes[index], agreed.dtypes[index], agreed.devices[index])
        text = changed_param_text(self.names[index], before, (param.shape, param.dtype, param.device))
        self.give_up(text)
        raise RuntimeError(text)

    def _dense(self, index: int) -> Tensor | None:
        param = self.params[index]
        if param.grad is None or not param.grad.is_sparse:
            return param.grad
        if not self._options.sparse_as_dense:
            raise RuntimeError(
                f"{self.names[index]} has a sparse gradient now and had none in the first step; pass "
                "sparse_as_dense=True to DistributedOptimizer"
            )
        self._layout.densified[index] = True
        param.grad = param.grad.to_dense()
        return param.grad

    def _restore_sparse(self) -> None:
        """Converts gradients that were sent as dense memory back to sparse ones."""
        if not self._options.sparse_as_dense:
            return
        for param, wanted in zip(self.params, self._layout.densified, strict=True):
            if wanted and param.grad is not None and not param.grad.is_sparse:
                param.grad = param.grad.to_sparse(1)

    def _combine_by_name(self) -> None:
        """Combines gradients by name. Requires that all ranks have finished the step: a void step has no names."""
        started = [
            (index, start_gather(self.params[index], self.names[index], self._options)) for index in self._sparse
        ]
        if self._packed:
            exchange(self._packed, self.names, self.params, self._options)()
        for index, finish in started:
            total = finish()
            if total._nnz() > 0 or self.params[index].grad is not None:
                self.params[index].grad = total

    @profiled("wait_gradients")
    def _wait(self, interruptible: bool = False) -> None:
        if self._alone and self._outcome is None:
            self._phase = Phase.REDUCED
            return
        begin = time.perf_counter()
        try:
            if self._await_step(interruptible):
                self._combine_by_name()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if interruptible and was_interrupted(error):
                raise
            if not self.skips(error):
                self._reset()
                raise
            # Without gradients an optimizer changes nothing.
            for param in self.params:
                param.grad = None
        else:
            if self._outcome is False:
                self._make_void()
            else:
                self.residuals.steps += 1
                self._take_results()
        finally:
            self.exposed_seconds += time.perf_counter() - begin
        self._count_step()
        self._forget_memory()
        self._sparse, self._passes = [], 0
        self._phase = Phase.REDUCED

    def _take_results(self) -> None:
        touched = self._edited() if self._late or self._options.sync != "backward" else []
        used: list[bool] | None = None
        for index, send_buffer in self._send_buffers.items():
            grad = self._grads[index]
            if grad is not None:
                grad.copy_(send_buffer)
                continue
            used = self.used() if used is None else used
            if used[index]:
                self.params[index].grad = send_buffer
        if touched:
            self._reset()
            raise RuntimeError(edited_grad_text(touched[0]))
        self._restore_sparse()

    def _edited(self) -> list[str]:
        """Returns names of gradients that the program has changed since backward."""
        return self._edited_early + [
            self.names[index]
            for index, grad in enumerate(self._grads)
            if grad is not None and (self.params[index].grad is not grad or grad._version != self._versions[index])
        ]
