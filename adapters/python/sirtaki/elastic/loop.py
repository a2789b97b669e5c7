"""run(), which calls a training function again when ranks are lost or join."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from sirtaki import _growth, _notice, basics, errors
from sirtaki.elastic import _snapshots
from sirtaki.elastic.state import HostsUpdatedInterrupt, State

Result = TypeVar("Result")
_log = logging.getLogger("sirtaki")


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a function that trains on when ranks are lost, join or leave. Its first argument is the training's State.

    It calls state.sync(), then `func` with its own arguments. When a rank is lost, `func` ends with an error, the state
    goes back to its last commit, the survivors get a new rank and size, reset callbacks run, and it begins again with
    sync(). So `func` takes its place in the training (epoch, batch) from the state. When ranks join, commit() or
    check_host_updates() raises HostsUpdatedInterrupt, and the same happens, but the state stays as it is. When a rank
    that has got SIGTERM leaves, the same happens on the others; its own program ends there with code 0.

    Other errors that ranks share (HorovodInternalError) are treated in the same way once: if one comes again before the
    next commit, it is raised, and so is any error in a job that is not elastic.

    Args:
        func: the training function.

    Raises:
        PeerLostError: too few ranks are left (option elastic.min), or the others have given this one up.
    """
    return run_guarded(func, nullcontext)


def run_guarded(func: Callable[..., Result], guard: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Result]:
    """Returns run(func) for a framework with exceptions of its own.

    Args:
        func: the training function.
        guard: returns a context that raises exceptions of sirtaki.errors in their place, also in reset callbacks.
    """
    return _looped(func, _growth.regroup, guard)


def run_fn(func: Callable[..., Result], reset: Callable[[], Any]) -> Callable[..., Result]:
    """Returns run(func) with another function that makes the next session; named as in Horovod.

    Args:
        func: the training function.
        reset: makes the next session, as regroup() does.
    """
    return _looped(func, reset, nullcontext)


def _looped(
    func: Callable[..., Result], reset: Callable[[], Any], guard: Callable[[], AbstractContextManager[Any]]
) -> Callable[..., Result]:
    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Result:
        try:
            first = _growth.begin_loop()
            with _notice.leaves_at_commits(), _snapshots.opened(state, first) as snapshots:
                return loop(snapshots, first, state, *args, **kwargs)
        finally:
            _growth.admit(False)

    def loop(snapshots: _snapshots.Snapshots, first: bool, state: State, *args: Any, **kwargs: Any) -> Result:
        failures, regrouped = _Failures(state), True
        while True:
            try:
                with guard():
                    if not regrouped:
                        with snapshots.saving_at_the_end():
                            reset()
                        regrouped = True
                        with _growth.explaining_new_ranks(in_callback=True), guard():
                            state.on_reset()
                    with basics.losses_raise():
                        snapshots.sync()
                        _growth.admit(first)
                        result = func(state, *args, **kwargs)
                snapshots.end()
                return result
            except errors.HorovodInternalError as error:
                if not failures.allow(error):
                    raise
                basics.abandon()
                state.restore()
            except HostsUpdatedInterrupt:
                _end_session(state)
            regrouped = False

    return wrapper


def _end_session(state: State) -> None:
    """Ends a session because others join or leave. After a loss, the state is that of its last commit."""
    try:
        _growth.prepare_change()
    except errors.HorovodInternalError as error:
        # The state may have a part of the last merge.
        _log.warning("the state goes back to its last commit: %s", error)
        basics.abandon()
        state.restore()
        return
    if _growth.change_agreed():
        state.save()  # for the case that a new rank is lost in sync()
    basics.abandon()


class _Failures:
    """Errors of one training that are not the loss of a rank."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._failed_at = -1

    def allow(self, error: errors.HorovodInternalError) -> bool:
        """Returns True if the training may go on after `error`."""
        if not basics.is_elastic() or not basics.is_initialized():
            return False
        if isinstance(error, errors.RanksChangedError):
            return True
        commits = getattr(self._state, "_commits", 0)
        again, self._failed_at = self._failed_at == commits, commits
        return not again
