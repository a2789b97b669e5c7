"""Ranks that join or leave an elastic job at a commit, and what a new rank must not do before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sirtaki import _core, _notice, basics, errors
from sirtaki._telemetry.lines import say

_OF_NEW_RANKS = (
    "this process has joined a running job: before elastic.run(), it may make only those steps that reset callbacks of "
    "the other ranks make, too"
)
_OF_CALLBACKS = (
    "a reset callback may make steps only if the program makes the same ones between init() and elastic.run(), where "
    "new ranks make them"
)


class _State:
    #: True in a process that has joined a running job, before elastic.run() begins.
    fresh = False
    #: True until elastic.run() begins for the first time.
    first_loop = True
    #: False once check_snapshots() has looked.
    unchecked = True
    #: Number of the change for which all ranks end the session; 0: it ends for another reason.
    change = 0


_state = _State()
_before_change: list[Any] = []


def _note_fresh() -> None:
    _state.fresh = basics.is_elastic() and _core.growth()[1]
    _state.first_loop = True


basics.after_init(_note_fresh)


def before_change(callback: Any) -> None:
    """Calls `callback()` when all ranks end a session in order, before abandon().

    It may raise HorovodInternalError, for example if a rank is lost.
    """
    _before_change.append(callback)


def check_fresh() -> None:
    """Raises an error in a process that has joined a running job, where elastic.run() has not begun."""
    if _state.fresh:
        raise errors.UnsupportedError(
            "this process has joined a running job, whose other ranks wait in elastic.run(): call no operation before "
            "it. state.sync() gives a new rank all of the state"
        )


@contextmanager
def explaining_new_ranks(in_callback: bool = False) -> Iterator[None]:
    """Returns a context for steps of a new rank before elastic.run(), or of the others in a reset callback.

    If these do not match, all ranks are stuck, and the error tells the rule.
    """
    try:
        yield
    except errors.StuckError as error:
        if not _state.fresh and not in_callback:
            raise
        rule = _OF_CALLBACKS if in_callback else _OF_NEW_RANKS
        raise errors.StuckError(f"{error}; {rule} (docs/elastic/new_ranks.md)", error.rank, error.tensor) from error


def check_snapshots() -> None:
    """Warns once, on rank 0, of elastic.snapshot_dir in a training that has not come to elastic.run()."""
    if not (_state.unchecked and _state.first_loop and _core.is_initialized()):
        return
    _state.unchecked = False
    if basics.rank() == 0 and basics.option("elastic.snapshot_dir"):
        say(
            "warning: elastic.snapshot_dir has no effect outside of elastic.run(): steps and commits there are in no "
            "snapshot; docs/elastic.md says how to change the script"
        )


def begin_loop() -> bool:
    """Called when elastic.run() begins. Returns True the first time: a new rank begins with the first one."""
    _state.fresh = False
    first, _state.first_loop = _state.first_loop, False
    return first


def has_looped() -> bool:
    """Returns True once elastic.run() has begun."""
    return not _state.first_loop


def admit(admits: bool) -> None:
    """Says that this rank has the state of the training and gives it to ranks that join, or does so no more."""
    if _core.is_initialized() and basics.is_elastic():
        _core.admit(admits)


def change_wanted() -> int | None:
    """Returns the number of a change that waits, or 0; None where ranks can neither join nor leave, alike on all ranks.

    They cannot outside of elastic.run().
    """
    if not basics.in_loop() or not _core.is_initialized():
        return None
    grows, _, change = _core.growth()
    return int(change) if grows or _notice.may_leave() else None


def announced() -> int:
    """Returns the number of processes that the launcher has started or asked to leave and that have not done so yet."""
    return _core.changes_announced() if _core.is_initialized() and basics.is_elastic() else 0


def end_session_for(change: int) -> None:
    """Makes the next regroup() one for a change that all ranks have agreed on."""
    _state.change = change


def change_agreed() -> bool:
    """Returns True if the next regroup() is for a change that all ranks have agreed on."""
    return _state.change != 0


def prepare_change() -> None:
    """Keeps the part of a rank that is not in the state of the training, before a session ends in order.

    Raises:
        HorovodInternalError: the state may be changed in part.
    """
    for callback in _before_change:
        callback()


def regroup() -> None:
    """Does the same as basics.regroup(), for the change that all ranks have agreed on if there is one.

    Ends the program with code 0 if this rank has left the job because of SIGTERM.
    """
    change, _state.change = _state.change, 0
    with _notice.leaving():
        if change:
            basics.abandon()
            basics.open_next_session(change)
        else:
            basics.regroup()
