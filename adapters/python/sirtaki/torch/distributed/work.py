"""Work of torch.distributed over handles of Sirtaki: waits, futures, results in the tensors of the caller.

Outputs on a GPU are written on the stream that was current when the collective was called. A wait blocks the host until
the network is done, and makes the current stream wait for the outputs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.futures import Future

from sirtaki import errors
from sirtaki.ops import GroupHandle
from sirtaki.pump import pump
from sirtaki.torch._cuda import CudaQueue
from sirtaki.torch.distributed.convert import no_compile

#: Writes the results of the operations, in their order, to the outputs of the caller, and returns the outputs.
WriteOutputs = Callable[[list[Any]], list[Tensor]]
_Base: Any = getattr(distributed, "Work", None) or distributed._Work


class Call:
    """One call of a collective: its operations and outputs. Any thread may finish it; the first does the work."""

    def __init__(self, label: str, handle: GroupHandle, deliver: WriteOutputs, timeout: float) -> None:
        self.label = label
        self.timeout = timeout
        self._handle = handle
        queues = {one.queue.address: one.queue for one in handle.handles if isinstance(one.queue, CudaQueue)}
        self._queues = list(queues.values())
        self._deliver: WriteOutputs | None = deliver
        # Reentrant: the garbage collector may drop a work, which finishes its call, at any line here.
        self._lock = threading.RLock()
        self._result: list[Tensor] = []
        self._error: Exception | None = None

    @property
    def finished(self) -> bool:
        """True when results or an error are available."""
        return self._deliver is None

    @property
    def devices(self) -> list[torch.device]:
        """GPUs of the tensors."""
        return list({queue.device: None for queue in self._queues})

    @contextmanager
    def on_streams(self) -> Iterator[None]:
        """Makes the streams current on which the collective was called, on this thread."""
        with ExitStack() as stack:
            for queue in self._queues:
                stack.enter_context(queue.using())
            yield

    def is_done(self) -> bool:
        """Returns True if finish() would not block."""
        return self.finished or self._handle.poll()

    def finish(self, timeout: float | None = None) -> list[Tensor]:
        """Waits, writes the outputs and returns them; the same on every call. The current stream waits for them, too.

        Args:
            timeout: seconds; None: the timeout of the call.

        Raises:
            DeadlineError: the timeout has passed; the operation goes on.
            SirtakiError: the operation failed; the text names call, rank and cause.
        """
        seconds = self.timeout if timeout is None else timeout
        if not self._lock.acquire(timeout=seconds):
            raise self.deadline_error(seconds)
        try:
            if self._deliver is not None:
                self._run(self._deliver, seconds)
        finally:
            self._lock.release()
        if self._error is not None:
            raise self._error
        # Each caller may use another stream.
        for queue in self._queues:
            queue.follow()
        return self._result

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when is_done() has become True."""
        self._handle.on_done(callback)

    def deadline_error(self, seconds: float | None = None) -> errors.DeadlineError:
        """Returns the error of a wait of `seconds`; None: the timeout of the call."""
        seconds = self.timeout if seconds is None else seconds
        return errors.DeadlineError(
            f"{self.label} is not over after {seconds:g} s: another rank has not made this call yet, or is slow. Every "
            f"rank must make the same calls in the same order; init_process_group(timeout=...) gives more time"
        )

    def _run(self, deliver: WriteOutputs, seconds: float) -> None:
        try:
            with self.on_streams():
                self._result = deliver(self._handle.wait(seconds))
        except TimeoutError:
            raise self.deadline_error(seconds) from None
        except errors.SirtakiError as error:
            self._error = type(error)(f"{self.label}: {error}", error.rank, error.tensor)
        except Exception as error:
            self._error = error
        self._deliver = None
        self._handle = GroupHandle([])


@no_compile
class SirtakiWork(_Base):
    """A started collective. It writes its outputs even if it is dropped without a wait."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call
        self._watched = False  # a future will finish it

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks until the outputs are written or, on a GPU, queued before later work; always returns True.

        Args:
            timeout: the limit; None and 0 mean the timeout of the call or, without one, of the group.

        Raises:
            HorovodInternalError: a RuntimeError; see Call.finish().
        """
        seconds = 0.0 if timeout is None else timeout.total_seconds()
        self._call.finish(seconds if seconds > 0 else None)
        return True

    def synchronize(self) -> None:
        """Waits as wait() does."""
        self.wait()

    def is_completed(self) -> bool:
        """Returns True if wait() would not block."""
        return self._call.is_done()

    def is_success(self) -> bool:
        """Returns True if the collective is done without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Returns the error; None while the collective runs and after success."""
        if not self._call.is_done():
            return None
        try:
            self._call.finish()
        except Exception as error:
            return error
        return None

    def result(self) -> list[Tensor]:
        """Returns the outputs; waits for them."""
        return self._call.finish()

    def get_future(self) -> Future[list[Tensor]]:
        """Returns a future of the outputs. An error or the timeout ends it as RuntimeError with the same text."""
        call = self._call
        # A future must know its GPUs before: torch makes consumers wait for the streams of these.
        outcome: Future[Any] = Future(devices=[*call.devices] or None)
        ended = threading.Lock()  # held by the first of timeout and result

        def expire() -> None:
            if ended.acquire(blocking=False):
                outcome.set_exception(call.deadline_error())

        def resolve() -> None:
            forget()
            if not ended.acquire(blocking=False):
                return
            with call.on_streams():
                try:
                    result = call.finish()
                except Exception as error:
                    outcome.set_exception(error)
                else:
                    outcome.set_result(result)

        # The C++ of torch takes an exception set here for a result; one raised by a callback is an error there, too.
        checked = outcome.then(lambda done: done.value())
        # DistributedDataParallel waits for futures without a limit.
        forget = pump.remind(call.timeout, expire)
        self._watched = True
        call.on_done(resolve)
        return checked

    def __del__(self) -> None:
        call = self._call
        if self._watched or call.finished or sys.is_finalizing():
            return

        def finish() -> None:
            try:
                call.finish()
            except Exception:
                return  # nobody reads the error

        try:
            call.on_done(finish)
        except Exception:  # the interpreter or the session is ending
            return
