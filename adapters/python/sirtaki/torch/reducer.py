"""GradientReducer: combines the gradients of one optimizer over all ranks while backward runs.

Every parameter has a hook that runs when its gradient is complete. Dense gradients go into a stream (the same tensors
every step, planned once); sparse ones are gathered by name. Which parameters are which is agreed at the end of the
first backward, together with the order in which gradients become ready, so overlap begins with the second step.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sirtaki import _core, basics
from sirtaki.errors import SirtakiError
from sirtaki.ops import ReduceOp
from sirtaki.torch._adapter import check_kind, dtype_code, torch_ops
from sirtaki.torch._nesting import inside_nested_backward
from sirtaki.torch.ops import sparse_allreduce_async

_UNSEEN, _DENSE, _SPARSE = 0, 1, 2


@dataclass(frozen=True)
class ReducerOptions:
    """How gradients are combined."""

    stream_name: str
    sync: str  # "backward": done when backward returns; "step": when synchronize() returns
    op: ReduceOp
    codec: str | None
    prescale: float
    postscale: float
    sparse_as_dense: bool


class _Phase(enum.Enum):
    IDLE = "idle"  # nothing handed over since the last step
    FILLING = "filling"  # a backward is running, or ended with an exception
    IN_FLIGHT = "in flight"  # backward is over, the runtime works on the gradients
    REDUCED = "reduced"  # gradients are combined


@dataclass
class _Sent:
    """A gradient that the runtime works on."""

    index: int
    grad: Tensor | None  # None: this rank has none, `wire` holds zeros
    wire: Tensor
    version: int


class GradientReducer:
    """One optimizer's parameters; see the module's text. Used from the thread that runs backward."""

    def __init__(self, names: list[str], params: list[Tensor], options: ReducerOptions) -> None:
        self._names = names
        self._params = params
        self._options = options
        self.passes_per_step = 1
        #: Seconds that this rank has waited for gradients so far.
        self.exposed_seconds = 0.0
        self._index = {id(p): i for i, p in enumerate(params)}
        self._hooks = [self._hook(p) for p in params]
        self._held = 0
        self._alone = True
        self._generation = -1
        self._kinds: list[int] = []
        self._slots: dict[int, int] = {}  # index of a dense parameter -> its place in the stream
        self._strides: list[tuple[int, ...]] = []
        self._stream: Any = None
        self._arrivals: list[int] = []
        self._reset()

    # ---- what the optimizer calls ----

    def hold(self, held: bool) -> None:
        """Between hold(True) and hold(False) backward only accumulates on this rank."""
        self._held += 1 if held else -1

    def add(self, name: str, param: Tensor) -> None:
        """One more parameter, from the next step on."""
        self._index[id(param)] = len(self._params)
        self._names.append(name)
        self._params.append(param)
        self._hooks.append(self._hook(param))
        self._forget_stream()

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
        stream, sent, sparse = self._stream, self._sent, self._sparse
        self._reset()
        if stream is not None and self._current():
            stream.abort(f"backward() failed on rank {basics.rank()}")
        sent.clear()
        for _, finish in sparse:
            # The others gather these as well, and nobody uses the values.
            with contextlib.suppress(SirtakiError):
                finish()

    # ---- hooks ----

    def _hook(self, param: Tensor) -> Any:
        return param.register_post_accumulate_grad_hook(self._on_gradient)

    def _on_gradient(self, param: Tensor) -> None:
        if not self._callback_queued:
            self._begin_backward(param)
        if self._held or self._passes < self.passes_per_step:
            return
        index = self._index[id(param)]
        if self._alone:
            return
        if self._stream is None or not self._current():
            self._arrivals.append(index)
            return
        self._hand_over(index)

    def _begin_backward(self, param: Tensor) -> None:
        if self._phase is _Phase.IN_FLIGHT:
            raise RuntimeError(self._misuse(param))
        if self._phase is _Phase.FILLING and self._backward_open:
            # The same pass goes on after a nested backward.
            self._queue_callback()
            return
        if self._phase is _Phase.REDUCED:
            if self._options.op is not ReduceOp.AVERAGE:
                raise RuntimeError(self._misuse(param))
            self._reset()
        self._queue_callback()
        self._backward_open = True
        self._alone = basics.size() == 1
        if self._held:
            return
        self._phase = _Phase.FILLING
        self._passes += 1
        if self._passes > self.passes_per_step:
            raise RuntimeError(self._misuse(param))

    def _misuse(self, param: Tensor) -> str:
        name = self._names[self._index[id(param)]]
        return (
            f"the gradient of {name} was computed more than backward_passes_per_step ({self.passes_per_step}) times "
            "before step(); raise backward_passes_per_step, or run the extra passes inside no_sync(), to accumulate. "
            "After a backward() that failed, call zero_grad() first"
        )

    def _queue_callback(self) -> None:
        self._callback_queued = True
        torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    def _end_of_backward(self) -> None:
        self._callback_queued = False
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
        self._sent: list[_Sent] = []
        self._submitted: set[int] = set()
        self._sparse: list[tuple[int, Callable[[], Tensor]]] = []
        self._arrivals = []

    def _current(self) -> bool:
        return self._generation == basics.generation()

    def _finish(self) -> None:
        """Hands over what the hooks have not, and tells the runtime that the step is complete."""
        self._phase = _Phase.IN_FLIGHT
        self._alone = basics.size() == 1
        if self._alone:
            self._make_dense()
            return
        begin = time.perf_counter()
        if self._stream is None or not self._current():
            self._open()
        for index in range(len(self._params)):
            if index not in self._submitted:
                self._hand_over(index)
        if self._slots:
            self._stream.finish()
        self.exposed_seconds += time.perf_counter() - begin

    def _hand_over(self, index: int) -> None:
        if index in self._submitted:
            raise RuntimeError(self._misuse(self._params[index]))
        self._submitted.add(index)
        if self._kinds[index] == _SPARSE:
            self._start_sparse(index)
            return
        param = self._params[index]
        grad = param.grad
        if grad is None:
            wire = torch.empty_strided(param.shape, self._strides[index], dtype=param.dtype).zero_()
            version = 0
        else:
            grad = self._dense(index, grad)
            version = grad._version
            wire = self._wire(index, grad)
        self._sent.append(_Sent(index, grad, wire, version))
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
        return wire.copy_(grad)

    def _start_sparse(self, index: int) -> None:
        param = self._params[index]
        grad = param.grad
        if grad is None:
            no_rows = torch.empty((0, *param.shape[1:]), dtype=param.dtype)
            no_indices = torch.empty((1, 0), dtype=torch.int64)
            grad = torch.sparse_coo_tensor(no_indices, no_rows, param.shape, check_invariants=True)
        name = f"{self._options.stream_name}.{self._names[index]}"
        scale = self._options.prescale * self._options.postscale
        finish = sparse_allreduce_async(grad if scale == 1.0 else grad * scale, name, self._options.op)
        self._sparse.append((index, finish))

    def _wait(self) -> None:
        if self._alone:
            self._phase = _Phase.REDUCED
            return
        begin = time.perf_counter()
        try:
            if self._slots:
                self._stream.wait()
            for index, finish in self._sparse:
                total = finish()
                if total._nnz() > 0 or self._params[index].grad is not None:
                    self._params[index].grad = total
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._reset()
            raise
        finally:
            self.exposed_seconds += time.perf_counter() - begin
        self._take_results()
        self._sent, self._submitted, self._sparse, self._passes = [], set(), [], 0
        self._phase = _Phase.REDUCED

    def _take_results(self) -> None:
        used = self._stream.used() if any(sent.grad is None for sent in self._sent) else None
        edited = []
        for sent in self._sent:
            param = self._params[sent.index]
            if sent.grad is None:
                if used is not None and used[self._slots[sent.index]]:
                    param.grad = sent.wire
                continue
            if param.grad is not sent.grad or sent.grad._version != sent.version:
                edited.append(self._names[sent.index])
            if sent.wire is not sent.grad:
                sent.grad.copy_(sent.wire)
        if edited:
            self._reset()
            raise RuntimeError(
                f"the gradient of {edited[0]} was changed between backward() and step(), while the runtime was working "
                "on it; call synchronize() before clipping or other changes, then step() inside skip_synchronize(), or "
                'use sync="backward"'
            )

    # ---- the stream ----

    def _forget_stream(self) -> None:
        if self._stream is not None and self._current():
            self._stream.close()
        self._stream = None

    def _open(self) -> None:
        """Agrees with the other ranks on kinds and order, then opens the stream. Collective."""
        self._stream = None
        self._kinds = self._agree_on_kinds()
        dense = [i for i, kind in enumerate(self._kinds) if kind != _SPARSE]
        self._slots = {index: slot for slot, index in enumerate(dense)}
        for param in (self._params[i] for i in dense):
            check_kind(param)
        self._strides = [torch.empty_like(p, device="meta").stride() for p in self._params]
        order = self._agree_on_order(dense)
        tensors = [(0, dtype_code(self._params[i].dtype), 0, 0, self._params[i].shape, self._strides[i]) for i in dense]
        options = self._options
        how = (int(options.op), options.prescale, options.postscale, options.codec)
        if dense:
            names = [self._names[i] for i in dense]
            self._stream = _core.Stream(options.stream_name, names, tensors, order, how)
        else:
            self._stream = _NoStream()
        self._generation = basics.generation()

    def _agree_on_kinds(self) -> list[int]:
        kinds = torch.zeros(len(self._params), dtype=torch.uint8)
        for i, param in enumerate(self._params):
            if param.grad is not None:
                kinds[i] = _SPARSE if param.grad.is_sparse and not self._options.sparse_as_dense else _DENSE
        name = f"{self._options.stream_name}.kinds"
        work = torch_ops.allreduce(kinds, name, ReduceOp.MAX, (1.0, 1.0), in_place=True)
        return torch_ops.start([work])[0].wait().tolist()

    def _agree_on_order(self, dense: list[int]) -> list[int]:
        """Rank 0's order of arrival, which the plan of all ranks starts from."""
        seen = [i for i in dict.fromkeys(self._arrivals) if i in self._slots]
        rest = [i for i in reversed(dense) if i not in set(seen)]
        order = torch.tensor([self._slots[i] for i in seen + rest], dtype=torch.int32)
        work = torch_ops.broadcast(order, 0, f"{self._options.stream_name}.order", in_place=True)
        return torch_ops.start([work])[0].wait().tolist()


class _NoStream:
    """Stands for a stream without tensors."""

    def abort(self, why: str) -> None:
        """Nothing to give up."""

    def close(self) -> None:
        """Nothing to close."""
