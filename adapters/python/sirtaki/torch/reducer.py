"""GradientReducer: combines the gradients of one optimizer over all ranks while backward runs.

Every parameter has a hook that runs when its gradient is complete. Dense gradients go into a stream (the same tensors
every step, planned once); sparse ones are gathered by name. Which parameters are which is agreed at the end of the
first backward, together with the order in which gradients become ready, so overlap begins with the second step.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sirtaki import basics
from sirtaki.ops import ReduceOp
from sirtaki.torch._layout import ReducerOptions, open_layout
from sirtaki.torch._nesting import inside_nested_backward
from sirtaki.torch.ops import sparse_allreduce_async


class _Phase(enum.Enum):
    IDLE = "idle"  # nothing handed over since the last step
    FILLING = "filling"  # a backward is running, or ended with an exception
    IN_FLIGHT = "in flight"  # backward is over, the runtime works on the gradients
    REDUCED = "reduced"  # gradients are combined


class GradientReducer:
    """One optimizer's parameters; see the module's text. Used from the thread that runs backward."""

    def __init__(self, names: list[str], params: list[Tensor], options: ReducerOptions) -> None:
        self._names = names
        self._params = params
        self._options = options
        self.passes_per_step = 1
        #: Seconds that this rank has waited for gradients so far.
        self.exposed_seconds = 0.0
        self._held = 0
        self._alone = True
        self._generation = -1
        self._slots: list[int] = []  # a parameter's place in the stream; -1: sparse
        self._strides: list[tuple[int, ...]] = []
        self._dtypes: list[torch.dtype] = []
        self._stream: Any = None
        self._arrivals: list[int] = []
        self._reset()
        self._hooks = [self._hook(i) for i in range(len(params))]

    # ---- what the optimizer calls ----

    def hold(self, held: bool) -> None:
        """Between hold(True) and hold(False) backward only accumulates on this rank."""
        self._held += 1 if held else -1

    def add(self, name: str, param: Tensor) -> None:
        """One more parameter, from the next step on."""
        self._names.append(name)
        self._params.append(param)
        self._hooks.append(self._hook(len(self._params) - 1))
        self._forget_stream()
        self._reset()

    def close(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @property
    def reduced(self) -> bool:
        """True when the gradients are combined and no step was made since."""
        return self._phase is _Phase.REDUCED

    def synchronize(self) -> None:
        """Combines what is not yet combined and waits. Collective unless `reduced`."""
        if self._phase is _Phase.REDUCED:
            return
        if self._phase is _Phase.FILLING and self._backward_open:
            self.give_up()
            raise RuntimeError(
                "backward() ended with an exception, so there are no gradients to apply; call zero_grad() and run "
                "backward() again"
            )
        if self._phase is not _Phase.IN_FLIGHT:
            self._finish()
        self._wait()

    def stepped(self) -> None:
        """The optimizer has applied the gradients."""
        self._reset()

    @property
    def in_flight(self) -> bool:
        """True while the runtime works on the gradients."""
        return self._phase is _Phase.IN_FLIGHT

    def check_zero_grad(self) -> None:
        """Before zero_grad(): refuses while gradients are in flight; ends a backward that failed half-way."""
        if self._phase is _Phase.IN_FLIGHT:
            raise RuntimeError(
                "zero_grad() between backward() and step() would clear gradients that the runtime is still working on; "
                "call step() or synchronize() first"
            )
        if self._phase is _Phase.FILLING and self._backward_open:
            self.give_up()
        else:
            self._reset()

    def give_up(self) -> None:
        """Makes the unfinished step void on all ranks; the others get AbortedError."""
        # The runtime uses the memory until abort() has returned.
        borrowed = (self._grads, self._wires)
        self._reset()
        if self._stream is not None and self._current():
            self._stream.abort(f"backward() failed on rank {basics.rank()}")
        del borrowed

    # ---- hooks ----

    def _hook(self, index: int) -> Any:
        with_version = self._options.sync == "step"

        def on_gradient(param: Tensor) -> None:
            # Once a step and parameter: the common case in as few steps as can be.
            ready = self._ready
            if ready is not None and not self._submitted[index]:
                grad = param.grad
                plain = grad is not None and not grad.is_sparse and grad.dtype is self._dtypes[index]
                if plain and self._slots[index] >= 0 and grad.stride() == self._strides[index]:
                    self._submitted[index] = 1
                    self._grads[index] = grad
                    if with_version:
                        self._versions[index] = grad._version
                    ready(self._slots[index], grad.data_ptr())
                    return
            self._on_gradient(index)

        return self._params[index].register_post_accumulate_grad_hook(on_gradient)

    def _on_gradient(self, index: int) -> None:
        if not self._callback_queued:
            self._begin_backward(index)
        if self._held or self._passes < self.passes_per_step or self._alone:
            return
        if self._stream is None or not self._current():
            self._arrivals.append(index)
            return
        self._ready = self._stream.ready
        self._hand_over(index)

    def _begin_backward(self, index: int) -> None:
        if self._phase is _Phase.IN_FLIGHT:
            raise RuntimeError(self._misuse(index))
        if self._phase is _Phase.FILLING and self._backward_open:
            # The same pass goes on after a nested backward.
            self._queue_callback()
            return
        if self._phase is _Phase.REDUCED:
            if self._options.op is not ReduceOp.AVERAGE:
                raise RuntimeError(self._misuse(index))
            self._reset()
        self._queue_callback()
        self._backward_open = True
        self._alone = basics.size() == 1
        if self._held:
            return
        self._phase = _Phase.FILLING
        self._passes += 1
        if self._passes > self.passes_per_step:
            raise RuntimeError(self._misuse(index))

    def _misuse(self, index: int) -> str:
        return (
            f"the gradient of {self._names[index]} was computed more than backward_passes_per_step "
            f"({self.passes_per_step}) times before step(); raise backward_passes_per_step, or run the extra passes "
            "inside no_sync(), to accumulate. After a backward() that failed, call zero_grad() first"
        )

    def _queue_callback(self) -> None:
        self._callback_queued = True
        torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    def _end_of_backward(self) -> None:
        self._callback_queued = False
        self._ready = None
        if inside_nested_backward():
            return
        self._backward_open = False
        if self._phase is not _Phase.FILLING or self._held or self._passes < self.passes_per_step:
            return
        self._finish()
        if self._options.sync == "backward":
            self._wait()

    # ---- one step ----

    def _reset(self) -> None:
        self._phase = _Phase.IDLE
        self._passes = 0
        #: The program has called synchronize() itself.
        self.told_by_program = False
        self._callback_queued = False
        self._backward_open = False
        self._forget_memory()
        self._sparse: list[int] = []  # handed over in this step
        self._arrivals = []

    def _forget_memory(self) -> None:
        count = len(self._params)
        #: Stream.ready while hooks may hand gradients over, else None.
        self._ready: Any = None
        self._submitted = bytearray(count)
        self._grads: list[Tensor | None] = [None] * count
        self._versions = [0] * count
        #: Memory that travels instead of the gradient's own: another layout, or zeros where there is no gradient.
        self._wires: dict[int, Tensor] = {}

    def _current(self) -> bool:
        return self._generation == basics.generation()

    def _finish(self) -> None:
        """Hands over what the hooks have not, and tells the runtime that the step is complete."""
        self._phase = _Phase.IN_FLIGHT
        self._ready = None
        self._alone = basics.size() == 1
        if self._alone:
            self._make_dense()
            return
        begin = time.perf_counter()
        if self._stream is None or not self._current():
            self._open()
        for index in range(len(self._params)):
            if not self._submitted[index]:
                self._hand_over(index)
        self._stream.finish()
        self.exposed_seconds += time.perf_counter() - begin

    def _hand_over(self, index: int) -> None:
        if self._submitted[index]:
            raise RuntimeError(self._misuse(index))
        self._submitted[index] = 1
        if self._slots[index] < 0:
            self._sparse.append(index)
            return
        param = self._params[index]
        grad = param.grad
        if grad is None:
            wire = torch.empty_strided(param.shape, self._strides[index], dtype=param.dtype).zero_()
            self._wires[index] = wire
        else:
            grad = self._dense(index, grad)
            self._grads[index], self._versions[index] = grad, grad._version
            wire = self._wire(index, grad)
        self._stream.ready(self._slots[index], wire.data_ptr(), grad is None)

    def _dense(self, index: int, grad: Tensor) -> Tensor:
        if not grad.is_sparse:
            return grad
        if not self._options.sparse_as_dense:
            raise RuntimeError(
                f"{self._names[index]} has a sparse gradient now and had none in the first step; pass "
                "sparse_as_dense=True to DistributedOptimizer"
            )
        param = self._params[index]
        param.grad = grad.to_dense()
        return param.grad

    def _make_dense(self) -> None:
        """One rank alone sends nothing, but its optimizer sees the same kind of gradients."""
        for param in self._params if self._options.sparse_as_dense else ():
            if param.grad is not None and param.grad.is_sparse:
                param.grad = param.grad.to_dense()

    def _wire(self, index: int, grad: Tensor) -> Tensor:
        """The memory that travels: the gradient's own where it is laid out as agreed."""
        if grad.stride() == self._strides[index] and grad.dtype == self._params[index].dtype:
            return grad
        wire = torch.empty_strided(grad.shape, self._strides[index], dtype=self._params[index].dtype)
        self._wires[index] = wire
        return wire.copy_(grad)

    def _gather_sparse(self) -> None:
        """Only when all ranks have finished the step: a gather of a void step would meet the next."""
        started = [(index, self._start_sparse(index)) for index in self._sparse]
        for index, finish in started:
            total = finish()
            if total._nnz() > 0 or self._params[index].grad is not None:
                self._params[index].grad = total

    def _start_sparse(self, index: int) -> Callable[[], Tensor]:
        param = self._params[index]
        grad = param.grad
        if grad is None:
            no_rows = torch.empty((0, *param.shape[1:]), dtype=param.dtype)
            no_indices = torch.empty((1, 0), dtype=torch.int64)
            grad = torch.sparse_coo_tensor(no_indices, no_rows, param.shape, check_invariants=True)
        name = f"{self._options.stream_name}.{self._names[index]}"
        scale = self._options.prescale * self._options.postscale
        return sparse_allreduce_async(grad if scale == 1.0 else grad * scale, name, self._options.op)

    def _wait(self) -> None:
        if self._alone:
            self._phase = _Phase.REDUCED
            return
        begin = time.perf_counter()
        try:
            self._stream.wait()
            self._gather_sparse()
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._reset()
            raise
        finally:
            self.exposed_seconds += time.perf_counter() - begin
        self._take_results()
        self._forget_memory()
        self._sparse, self._passes = [], 0
        self._phase = _Phase.REDUCED

    def _take_results(self) -> None:
        edited = self._edited() if self._options.sync == "step" else []
        used: list[bool] | None = None
        for index, wire in self._wires.items():
            grad = self._grads[index]
            if grad is not None:
                grad.copy_(wire)
                continue
            used = self._stream.used() if used is None else used
            if used[self._slots[index]]:
                self._params[index].grad = wire
        if edited:
            self._reset()
            raise RuntimeError(
                f"the gradient of {edited[0]} was changed between backward() and step(), while the runtime was working "
                "on it; call synchronize() before clipping or other changes, then step() inside skip_synchronize(), or "
                'use sync="backward"'
            )

    def _edited(self) -> list[str]:
        """Names of gradients that the program has changed since they were handed over."""
        return [
            self._names[index]
            for index, grad in enumerate(self._grads)
            if grad is not None and (self._params[index].grad is not grad or grad._version != self._versions[index])
        ]

    # ---- the stream ----

    def _forget_stream(self) -> None:
        if self._stream is not None and self._current():
            self._stream.close()
        self._stream = None

    def _open(self) -> None:
        """Agrees with the other ranks on what there is to reduce. Collective."""
        self._stream = None
        layout = open_layout(self._names, self._params, self._options, self._arrivals)
        self._slots, self._strides, self._dtypes = layout.slots, layout.strides, layout.dtypes
        self._stream = layout.stream
        self._generation = basics.generation()
