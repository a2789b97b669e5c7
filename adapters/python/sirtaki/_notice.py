"""SIGTERM to one rank of an elastic job: the first one is a notice, and the rank leaves at a commit.

That is so inside of elastic.run(), which calls commits, in the main thread, where Python has handlers, and under
sirtakirun: other launchers end the job with the rank, and have the coordinator in rank 0. A second SIGTERM acts at
once, and so does the first one where the rank cannot leave, and the one by which sirtakirun ends a job.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from sirtaki import _core, basics, errors


class _State:
    #: Ranks of this job may leave it.
    possible = False
    #: Fewest and most ranks that go on.
    least, most = 0, 0
    #: The job knows that this rank has to leave.
    asked = False
    #: Handler of SIGTERM outside of elastic.run(); None: that of this module is not installed.
    before: Any = None
    #: The handler of the program runs.
    calling = False


_state = _State()


def _begin() -> None:
    _state.asked = False
    _state.possible = basics.is_elastic() and "SIRTAKI_JOB_RANK" in os.environ
    _state.least, _state.most = int(basics.option("elastic.min")), int(basics.option("elastic.max"))


basics.after_init(_begin)


def may_leave() -> bool:
    """Returns True if ranks may leave this epoch, or a later one when others have joined; the same on all ranks."""
    return _state.possible and (_enough() or basics.size() < _state.most)


def asked() -> bool:
    """Returns True if this rank has to leave, as the job knows."""
    return _state.asked


def _enough() -> bool:
    return basics.size() > _state.least


@contextmanager
def leaves_at_commits() -> Iterator[None]:
    """Returns a context in which SIGTERM is a notice, because the program calls commits: that of elastic.run()."""
    installed = _install()
    try:
        yield
    finally:
        if installed:
            _uninstall()


def _install() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    if _state.before is not None or not _state.possible or not in_main_thread:
        return False
    before = signal.getsignal(signal.SIGTERM)
    if before is None or before is signal.SIG_IGN:
        return False  # handled by other code than Python's, or nobody's concern
    _state.before = before
    signal.signal(signal.SIGTERM, _on_signal)
    _core.notice_sigterm(may_leave())
    _core.watch_sigterm(before is signal.SIG_DFL, _state.asked)
    return True


def _uninstall() -> None:
    before, _state.before = _state.before, None
    if before is not None and signal.getsignal(signal.SIGTERM) is _on_signal:
        with suppress(ValueError):  # a thread has forked this process
            signal.signal(signal.SIGTERM, before)


os.register_at_fork(after_in_child=_uninstall)


def _on_signal(number: int, frame: FrameType | None) -> None:
    acts = _core.sigterm_acts() or not _ask()
    before = _state.before
    if callable(before):
        # One of this package ends the process, which a notice does not. One of the program may take its time, to save
        # a checkpoint for example.
        if (acts or not _is_ours(before)) and not _state.calling:
            _state.calling = True
            try:
                before(number, frame)
            finally:
                _state.calling = False
    elif acts:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _is_ours(handler: Any) -> bool:
    return str(getattr(handler, "__module__", "")).startswith("sirtaki.")


def _ask() -> bool:
    """Tells the job that this rank has to leave. Returns False if too few would be left."""
    if not basics.is_initialized() or not may_leave():
        return False
    with suppress(errors.SirtakiError):
        _core.leave_soon()
        _state.asked = True
        if not callable(_state.before):
            again = "ends this process at once"
        elif _is_ours(_state.before):
            again = "ends this process"  # when its main thread is back in Python
        else:
            again = "is for the handler of the program alone"
        when = "at its next commit" if _enough() else "when another rank has joined (elastic.min)"
        _say(f"rank {basics.rank()} has got SIGTERM and leaves the job {when}; a second SIGTERM {again}")
    return _state.asked


def _ask_again() -> None:
    _core.notice_sigterm(may_leave())
    if not _state.asked:
        return
    with suppress(errors.SirtakiError):
        _core.leave_soon()  # the signal may have come between two epochs
    if not _enough():
        _say(f"rank {basics.rank()} cannot leave the job yet, because too few ranks would be left (elastic.min)")


basics.on_regroup(_ask_again)


@contextmanager
def leaving() -> Iterator[None]:
    """Returns a context for a regroup at which this rank may leave the job. Then the program ends with code 0."""
    if _state.asked:
        # Needs the session. If the rank stays after all, the next report and run file have its steps from here on.
        from sirtaki._end_report import session

        session.terminated = True
        try:
            basics.prepare_end()
        finally:
            session.terminated = False
    try:
        yield
    except errors.NotInitializedError as error:
        # The end of the job blames nobody.
        if _state.asked and error.rank is not None:
            _say(f"{error}; this process ends because of SIGTERM")
            raise SystemExit(0) from None
        raise


def _say(text: str) -> None:
    # A handler of signals may have interrupted the file sys.stderr.
    with suppress(OSError):
        os.write(2, f"sirtaki: {text}\n".encode())
