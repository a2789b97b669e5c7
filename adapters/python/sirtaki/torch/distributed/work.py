"""Work of torch.distributed over handles of Sirtaki: waiting, futures, results in the caller's tensors."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import Tensor, distributed
from torch.futures import Future

from sirtaki import errors
from sirtaki.ops import GroupHandle
from sirtaki.pump import pump
from sirtaki.torch.distributed.convert import no_compile

#: What results of the operations, in their order, become: writes the caller's outputs and returns them.
WriteOutputs = Callable[[list[Any]], list[Tensor]]
_Base = getattr(distributed, "Work", None) or distributed._Work


class Call:
    """One call of a collective: its operations, and where results go. Any thread; whoever comes first settles it."""

    def __init__(self, label: str, handle: GroupHandle, deliver: WriteOutputs, timeout: float) -> None:
        self.label = label
        self.timeout = timeout
        self._handle = handle
        self._deliver: WriteOutputs | None = deliver
        # The collector may end a work, which settles its call, in the middle of any line here.
        self._lock = threading.RLock()
        self._result: list[Tensor] = []
        self._error: Exception | None = None

    @property
    def finished(self) -> bool:
        """True when results, or an error, are there."""
        return self._deliver is None

    def is_done(self) -> bool:
        """True when finish() would not block."""
        return self.finished or self._handle.poll()

    def finish(self, timeout: float | None = None) -> list[Tensor]:
        """Waits, writes results where they belong, and returns them; the same on every call.

        Args:
            timeout: seconds; None: those of the call.

        Raises:
            DeadlineError: the time is over; the operation goes on.
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
        return self._result

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when is_done() has become True."""
        self._handle.on_done(callback)

    def deadline_error(self, seconds: float | None = None) -> errors.DeadlineError:
        """The error of a wait that took `seconds`; None: as long as the call may take."""
        seconds = self.timeout if seconds is None else seconds
        return errors.DeadlineError(
            f"{self.label} is not over after {seconds:g} s: another rank has not made this call yet, or is slow. Every "
            f"rank must make the same calls in the same order; init_process_group(timeout=...) gives more time"
        )

    def _run(self, deliver: WriteOutputs, seconds: float) -> None:
        try:
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
    """A collective that was started. Dropped without a wait, it still writes its results."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call
        self._watched = False  # by a future, which settles it

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks until results are in the tensors of the call; always True.

        Args:
            timeout: None or 0: that of the call, or else of the group.

        Raises:
            HorovodInternalError: a RuntimeError; see Call.settle().
        """
        seconds = 0.0 if timeout is None else timeout.total_seconds()
        self._call.finish(seconds if seconds > 0 else None)
        return True

    def synchronize(self) -> None:
        """wait()."""
        self.wait()

    def is_completed(self) -> bool:
        """True when wait() would not block."""
        return self._call.is_done()

    def is_success(self) -> bool:
        """True when it is over and went well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Why it failed; None while it runs and when it went well."""
        if not self._call.is_done():
            return None
        try:
            self._call.finish()
        except Exception as error:
            return error
        return None

    def result(self) -> list[Tensor]:
        """The outputs; waits for them."""
        return self._call.finish()

    def get_future(self) -> Future[list[Tensor]]:
        """A future of the outputs. An error, or the timeout of the call, ends it as RuntimeError with the same text."""
        call = self._call
        outcome: Future[list[Tensor]] = Future()
        ended = threading.Lock()  # by whoever gets it first

        def expire() -> None:
            if ended.acquire(blocking=False):
                outcome.set_exception(call.deadline_error())

        def resolve() -> None:
            forget()
            if not ended.acquire(blocking=False):
                return
            try:
                result = call.finish()
            except Exception as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        # torch's C++ takes what set_exception() leaves for a result; what a callback raises is an error there, too.
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
                return  # nobody asks

        try:
            call.on_done(finish)
        except Exception:  # the interpreter or the session is ending
            return
