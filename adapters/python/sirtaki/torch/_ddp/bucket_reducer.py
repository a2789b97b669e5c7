"""BucketReducer: combines the gradients of one DistributedDataParallel by a stream, as its communication hook.

The hook submits the gradients of a bucket and returns a future. After the last bucket of a backward a thread waits for
the step and sets the futures, so the hook never waits, and neither does a backward through several models before its
end. The stream is opened after the first backward, by the same thread. Residuals belong to parameters, so other buckets
change nothing.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sirtaki import basics, errors
from sirtaki._end_report import Training, follow
from sirtaki._unused_options import options_are_used
from sirtaki.torch._ddp.backward_step import Bucket, Step, done, future_of
from sirtaki.torch._ddp.copies import CopiedReducer, before_forward
from sirtaki.torch._ddp.step_thread import StepThread
from sirtaki.torch._ddp.texts import (
    ANOTHER_OPTIMIZER,
    PYTHON_REDUCER,
    SUPERSEDED,
    changed_model_text,
    failed_backward_text,
    late_text,
    one_bucket_text,
    unknown_param_text,
)
from sirtaki.torch._optimizer.backward_end import was_interrupted
from sirtaki.torch._optimizer.gradient_stream import GradientStream
from sirtaki.torch._optimizer.options import ReducerOptions
from sirtaki.torch._optimizer.step_errors import changed_param_text
from sirtaki.torch._param_ownership import param_owners
from sirtaki.torch._profiling import profiled, profiled_until
from sirtaki.torch._sparse_allreduce import sparse_allreduce_async

_log = logging.getLogger("sirtaki")
#: DistributedDataParallel has built its final buckets by this backward.
_BACKWARD_OF_HINT = 2
#: Elements of a gradient that are looked at first in the search for one that is not 0.
_FIRST = 64


class BucketReducer(GradientStream):
    """Combines the gradients of one model; see the text of the module.

    The hook runs in the thread of backward, which waits for the futures before it goes on; so that thread and the one
    that ends the step never work at the same time.
    """

    def __init__(
        self, model: Any, names: list[str], params: list[Tensor], options: ReducerOptions, timeout: float
    ) -> None:
        """Makes a reducer; `model` is the DistributedDataParallel, `timeout` the seconds of a step after backward."""
        super().__init__(names, params, options)
        self._model = weakref.ref(model)
        self._group = model.process_group
        # Only then a gradient may be missing; DistributedDataParallel sends zeros in its place.
        self._looks_for_zeros = bool(model.find_unused_parameters or getattr(model, "static_graph", False))
        self._timeout = timeout
        self._index = {id(p): i for i, p in enumerate(params)}
        self._thread = StepThread(f"sirtaki-{options.stream_name}")
        #: Parts of the optimizers of the model; see OptimizerPart.
        self.parts: list[Any] = []
        #: Number of skipped steps so far, whose gradients are zeros.
        self.voids = 0
        #: Number of backward passes so far whose gradients were combined.
        self.backwards = 0
        self._buckets: list[Bucket] = []  # of the running backward
        self._open_at_begin = False
        self._opens_late = False  # the step of the running opening is over
        self._closed = self._superseded = False
        self._guard: Any = None
        self._handle: Any = None
        self._training: Training | None = None  # of the handle

    def __reduce__(self) -> Any:
        return CopiedReducer, ()

    def start(self) -> None:
        """Takes the parameters from earlier owners. Called once, when the model has the hook."""
        param_owners.claim(self, self.params)
        options_are_used()
        model: Any = self._model()
        model.register_forward_pre_hook(functools.partial(before_forward, self))
        weakref.finalize(model, self.close).atexit = False

    # ---- the hook ----

    def hook(self, bucket: Any) -> Future[Any]:
        """Submits the gradients of a bucket; returns a future of its buffer with the averages."""
        if self._superseded:
            raise RuntimeError(SUPERSEDED)
        if isinstance(bucket, tuple):
            raise errors.UnsupportedError(PYTHON_REDUCER)
        if self._closed:
            return default_hooks.allreduce_hook(self._group, bucket)
        if self.is_off():
            # Programs write require_backward_grad_sync themselves, to accumulate gradients.
            return done(bucket.buffer())
        future = self._take(bucket)
        # A thread without a profiler waits for the step.
        return profiled_until("wait_gradients", future) if bucket.is_last() else future

    @profiled("submit_bucket")
    def _take(self, bucket: Any) -> Future[Any]:
        if self._opens_late:
            return done(bucket.buffer()).then(self._raise_late)
        if bucket.index() == 0:
            self._begin()
        buffer = bucket.buffer()
        future = future_of(buffer)
        one = Bucket(self._indices_of(bucket), buffer, bucket.gradients(), future)
        self._buckets.append(one)
        if self._open_at_begin:
            self._submit(one)
        else:
            self._ready_order += one.indices
        if bucket.is_last():
            self.backwards += 1
            if self.backwards == _BACKWARD_OF_HINT and bucket.index() == 0:
                self._hint_at_cap(buffer)
            stream = torch.cuda.current_stream(buffer.device) if buffer.device.type == "cuda" else None
            step, self._buckets = Step(self._buckets, opens=not self._open_at_begin, stream=stream), []
            if not step.opens:
                self._stream.finish()
            self._thread.post(lambda: self._end_step_on_stream(step))
        # The C++ of torch takes an exception set here for a result; one raised by a callback is an error there, too.
        return future.then(lambda done: done.value())

    def _hint_at_cap(self, buffer: Tensor) -> None:
        if self._options.size > 1 and len(self.params) > 1:
            _log.info(one_bucket_text(buffer.numel() * buffer.element_size()))

    def _begin(self) -> None:
        if self._buckets:
            self._give_up(failed_backward_text())
        if not self._is_open():
            self._ready_order = []
        self._open_at_begin = self._is_open() and self._options.size > 1

    def _indices_of(self, bucket: Any) -> list[int]:
        params = bucket.parameters()
        try:
            return [self._index[id(p)] for p in params]
        except KeyError:
            shape = next(p.shape for p in params if id(p) not in self._index)
            self._give_up(text := unknown_param_text(shape))
            raise RuntimeError(text) from None

    def _submit(self, bucket: Bucket) -> None:
        if bucket.buffer.is_sparse:
            return
        layout, ready = self._layout, self._stream.ready
        for index, grad in zip(bucket.indices, bucket.gradients, strict=True):
            if not layout.matches(index, self.params[index]) or grad.dtype is not layout.dtypes[index]:
                self._refuse_change(index, grad)
            absent = self._looks_for_zeros and not _has_nonzero(grad)
            ready(self._slots[index], grad.data_ptr(), absent)

    def _refuse_change(self, index: int, grad: Tensor) -> None:
        agreed, param = self._layout, self.params[index]
        before = (agreed.shapes[index], agreed.dtypes[index], agreed.devices[index])
        text = changed_param_text(self.names[index], before, (param.shape, grad.dtype, param.device))
        self._give_up(text)
        raise RuntimeError(text)

    def _give_up(self, why: str) -> None:
        """Aborts the unfinished step on all ranks. The runtime uses the buffers until this returns."""
        submitted = self._open_at_begin and bool(self._buckets)
        if submitted and self._is_open() and basics.is_initialized():
            self._stream.abort(why)
        self._buckets = []

    # ---- the thread that ends steps ----

    def _end_step_on_stream(self, step: Step) -> None:
        with nullcontext() if step.stream is None else torch.cuda.stream(step.stream):
            self._end_step(step)

    def _end_step(self, step: Step) -> None:
        try:
            if self._options.size > 1:
                if step.opens:
                    self._open_and_submit(step)
                self._wait()
            results = [self._result(bucket) for bucket in step.buckets]
        except Exception as error:
            if not self.skips(error):
                step.fail(error)
                return
            results = [bucket.buffer.zero_() for bucket in step.buckets]
            self.voids += 1
        self._alone = self._options.size == 1
        if self._training is not None:
            self._training.stepped()
        step.resolve(results)

    def _open_and_submit(self, step: Step) -> None:
        covered = {index for bucket in step.buckets for index in bucket.indices}
        missing = [name for index, name in enumerate(self.names) if index not in covered]
        if missing:
            raise errors.InvalidArgumentError(changed_model_text(missing), basics.rank(), missing[0])
        # The wait of an opening has no limit of its own, and torch waits for futures without one.
        late = threading.Timer(self._timeout, lambda: self._fail_late(step))
        late.daemon = True
        late.start()
        try:
            self._open(interruptible=False)
        finally:
            late.cancel()
            in_time = step.opened.acquire(blocking=False)
            self._opens_late = False
        if not in_time:
            # DistributedDataParallel has its buffers again.
            self._stream.abort(late_text(self.names[0], self._timeout))
            raise self._late_error()
        for bucket in step.buckets:
            self._submit(bucket)
        self._stream.finish()

    def _wait(self) -> None:
        try:
            self.end_deferred(round(self._timeout * 1000))
        except Exception as error:
            if not was_interrupted(error):
                raise
            # The other ranks cannot make a step without this one, so they are told.
            self._forget_stream()
            raise self._late_error() from None

    def _fail_late(self, step: Step) -> None:
        if step.opened.acquire(blocking=False):
            self._opens_late = True
            step.fail(self._late_error())

    def _raise_late(self, done: Future[Any]) -> Any:
        del done
        raise self._late_error()

    def _late_error(self) -> errors.DeadlineError:
        return errors.DeadlineError(late_text(self.names[0], self._timeout))

    def _result(self, bucket: Bucket) -> Tensor:
        if not bucket.buffer.is_sparse or self._options.size == 1:
            return bucket.buffer
        name = f"{self.stream_name}.{self.names[bucket.indices[0]]}"
        return sparse_allreduce_async(bucket.buffer, name, self._options.op, self._options.process_set)()

    # ---- for the parts of optimizers ----

    @property
    def model(self) -> Any:
        """Returns the DistributedDataParallel, or None if it is gone."""
        return self._model()

    def use_parts(self, parts: list[Any], residuals: Any) -> None:
        """Divides the model among optimizers; `residuals` are those of all parts. Called once."""
        self.parts, self.residuals = parts, residuals

    def check_use(self) -> None:
        """Refuses a step after another owner has taken the parameters. Raises RuntimeError."""
        if self._superseded:
            raise RuntimeError(SUPERSEDED)

    @property
    def closed(self) -> bool:
        """True when the process group averages gradients again."""
        return self._closed

    def is_off(self) -> bool:
        """Returns True while all parts make steps by themselves, so that no gradients are combined."""
        return bool(self.parts) and all(part.alone for part in self.parts)

    def follow_parts(self) -> None:
        """Switches the reducer of DistributedDataParallel off if all parts make steps by themselves, else on."""
        model = self._model()
        if model is not None:
            model.require_backward_grad_sync = not self.is_off()

    def guard_steps(self) -> None:
        """Refuses steps of optimizers without a part from now on, while the reducer is off."""
        mine = weakref.ref(self)

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            del args, kwargs
            reducer = mine()
            if reducer is not None and reducer.is_off():
                reducer.check_optimizer(optimizer)

        self._guard = register_optimizer_step_pre_hook(before_step)

    def check_optimizer(self, optimizer: Any) -> None:
        """Refuses an optimizer of the parameters that has no part, nor wraps one that has. Raises RuntimeError."""
        inside = (optimizer, *vars(optimizer).values())
        if any(getattr(one, "_sirtaki", None) in self.parts for one in inside if isinstance(one, Optimizer)):
            return
        if any(id(p) in self._index for group in optimizer.param_groups for p in group["params"]):
            raise RuntimeError(ANOTHER_OPTIMIZER)

    def stepped(self) -> None:
        """Called after an optimizer has applied the gradients."""
        self._alone = True

    def give_up_backward(self) -> None:
        """Aborts a backward that failed half-way."""
        self._give_up(failed_backward_text())

    def before_forward(self, model: Any) -> None:
        """Aborts a backward that failed half-way, before DistributedDataParallel refuses to go on."""
        del model
        if self._buckets and torch.is_grad_enabled():
            self.give_up_backward()

    def follow(self, handle: Any) -> None:
        """Reports the steps of a model without optimizers by its handle, which lives as long as the model."""
        self._handle, self._training = handle, follow(handle)

    # ---- the end ----

    def supersede(self) -> None:
        """Implements Owner."""
        self.close()
        self._superseded = True

    def check_join(self) -> None:
        """Implements Owner: no gradients wait for a step of the runtime."""

    def close(self) -> None:
        """Closes the stream; a step in flight ends with an error. The process group averages later gradients."""
        if self._closed:
            return
        self._closed = True
        for part in self.parts:
            part.optimizer_gone()
            part.alone = False
        if self._guard is not None:
            self._guard.remove()
        if self._training is not None:
            self._training.close(self._handle)
        param_owners.release(self)
        self._buckets = []
        self._forget_stream()
        self._thread.close()


def _has_nonzero(grad: Tensor) -> bool:
    flat = grad.reshape(-1)
    return bool(flat[:_FIRST].any()) or bool(flat[_FIRST:].any())
