"""States of a training, which are committed, restored and made equal on all ranks.

commit() copies a state in the memory of this rank, restore() goes back to the copy, and sync() gives all ranks the
state of rank 0, which has been in the job for longest.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, cast

from sirtaki import _growth, basics, errors
from sirtaki._telemetry.lines import say
from sirtaki.elastic._layout import VALUE, Layout, Part
from sirtaki.ops import Ops

Broadcast = Callable[..., Any]

#: In the place of the number of a change: the ranks ask again.
_LATER = -1
#: Pauses before that, in seconds; each is twice as long as the one before.
_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
#: Seconds until rank 0 says for what it waits, and until it waits no more: the default of elastic.join_timeout.
_TELL_AFTER, _PATIENCE = 10.0, 600.0


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  (Horovod's name)
    """Makes elastic.run() regroup without going back to the last commit; named as in Horovod.

    commit() and check_host_updates() raise it on all ranks when others join or leave. A program may raise it, too.

    Args:
        skip_sync: accepted as in Horovod; not used: sync() follows always, since a new rank needs it.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts have changed")
        self.skip_sync = skip_sync


class HostMessages:
    """Tells programs for Horovod whether there are messages about hosts, which is all that they ask."""

    def __init__(self) -> None:
        #: The program knows that there are.
        self.seen = False

    def empty(self) -> bool:
        """Returns False when the launcher has decided that ranks join or leave, before they can.

        If rank 0 has asked, the next commit waits for all of them, where a commit otherwise takes those that can.
        """
        if _growth.announced() or _growth.change_wanted():
            self.seen = True
        return not self.seen


class State:
    """State of a training, for elastic.run(). Derived classes define save(), restore() and sync().

    Args:
        bcast_object: accepted as in Horovod: a function that returns the object of rank 0 on all ranks.
        get_rank: accepted as in Horovod; not used.
    """

    #: Writes commits to disk, in elastic.run() with elastic.snapshot_dir.
    _snapshots: Any = None
    #: Functions that pickle certain types for that, like a dispatch_table of pickle.
    _pickled_by: ClassVar[Mapping[type, Any]] = {}

    def __init__(self, bcast_object: Broadcast | None = None, get_rank: Callable[[], int] | None = None) -> None:
        del get_rank
        self._bcast_object = bcast_object or _broadcast_object
        self._reset_callbacks: list[Callable[[], Any]] = []
        #: Number of commits, from which elastic.run() sees progress.
        self._commits = 0
        self._host_messages = HostMessages()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Calls each of `callbacks` when the job goes on with other ranks: before sync(), with new rank and size."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls reset() and the registered functions; elastic.run() calls it."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state in memory: after a loss, training goes on from here. Then calls check_host_updates().

        Call it on all ranks behind the same step. Steps after the last commit are made again. In elastic jobs, states
        of models compare a part of their parameters among the ranks (option elastic.divergence).

        Raises:
            HostsUpdatedInterrupt: ranks join or leave.
            MismatchError: ranks differ, and the job ends; the same on all ranks.
        """
        self.save()
        self._commits += 1
        self._offer()
        try:
            self.check_host_updates()
        except HostsUpdatedInterrupt:
            self._write()
            raise
        self._write()

    def _write(self) -> None:
        """Writes the commit to disk if it is due: one that ranks have compared, where they do."""
        if self._snapshots is not None:
            self._snapshots.committed()
        else:
            _growth.check_snapshots()

    def check_host_updates(self) -> None:
        """Lets waiting ranks join, and lets ranks leave that have to.

        Collective in elastic.run() if ranks may join or leave; otherwise does nothing.
        Call it on all ranks behind the same step. A lost rank is an error of the next operation.

        Raises:
            HostsUpdatedInterrupt: ranks join or leave.
        """
        wanted = _growth.change_wanted()
        if wanted is None:
            self._host_messages.seen = False
            if self._offers():
                self._exchange(0)
            return
        change = self._await_change(wanted)
        self._host_messages.seen = False
        if change:
            _growth.end_session_for(change)
            ops = Ops(cast("Any", None))  # a barrier has no tensors
            # No rank ends the session before all know why. An error means that others have ended it, which is as good.
            with suppress(errors.RanksChangedError):
                ops.start_one(ops.barrier("sirtaki.change")).wait()
            raise HostsUpdatedInterrupt

    def _await_change(self, wanted: int) -> int:
        """Returns the number of a change, or 0, as rank 0 knows it. Collective.

        Waits for changes that the program on rank 0 has been told of.
        """
        begin, pause, told = time.monotonic(), _PAUSE, False
        while (change := self._agreed_change(wanted, time.monotonic() - begin < _PATIENCE)) == _LATER:
            if not told and basics.rank() == 0 and time.monotonic() - begin > _TELL_AFTER:
                told = True
                _say_what_is_awaited()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return change

    def _agreed_change(self, wanted: int, patient: bool) -> int:
        """Returns the number of a change, 0 or _LATER, as rank 0 knows it. Collective.

        It is _LATER only while rank 0 is patient.
        """
        if self._host_messages.seen:
            # In this order, because the last process may bring its change about in between.
            wanted = _LATER if patient and _growth.announced() else _growth.change_wanted() or 0
        return self._exchange(wanted)

    def _exchange(self, change: int) -> int:
        """Returns the number of rank 0. Collective. Compares the digest that _offer() has made, if any."""
        # A rank that waits in vain for the others names the call, unless the function of a program takes no name.
        name = {"name": "state.commit()"} if _takes_name(self._bcast_object) else {}
        return int(self._bcast_object(change, **name))

    def _offer(self) -> None:
        """Prepares a comparison with the states of other ranks, for the next _exchange()."""

    def _offers(self) -> bool:
        """Returns True if _exchange() compares states; the same on all ranks."""
        return False

    def save(self) -> None:
        """Copies the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes the state that of rank 0 on all ranks, and saves it. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the job goes on with other ranks, before sync()."""

    def _layout(self) -> Layout:
        """Returns the parts that sync() needs to be the same on all ranks. Not collective."""
        return {}

    def _hand_over(self) -> Any:
        """Returns the last copy of save(), which later calls of save() leave as it is."""
        raise NotImplementedError

    def _check_hand_over(self) -> None:
        """Raises UnsupportedError if a value of the state cannot be handed over."""

    def _take_over(self, saved: Any) -> None:
        """Sets the state to a result of _hand_over() in another process. Not collective.

        Raises:
            Exception: it is the state of another training.
        """
        raise NotImplementedError

    def _forget_loaded(self) -> None:
        """Drops what only this rank has of a checkpoint, before rank 0 takes a snapshot and sync() follows."""

    def _objects(self) -> Any:
        """Returns the module that has broadcast_object() and allgather_object() for the framework of the state."""
        # Not every framework comes with numpy.
        from sirtaki import objects

        return objects


class ObjectState(State):
    """State of picklable values, which become attributes.

    Args:
        bcast_object: accepted as in Horovod, see State.
        get_rank: accepted as in Horovod; not used.
        **attributes: the values by name.

    Raises:
        InvalidArgumentError: a value cannot be copied.
    """

    def __init__(
        self, bcast_object: Broadcast | None = None, get_rank: Callable[[], int] | None = None, **attributes: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = list(attributes)
        self._saved: dict[str, Any] = {}
        for name, value in attributes.items():
            setattr(self, name, value)
        self._save_attributes()

    def save(self) -> None:
        """Copies the attributes."""
        self._save_attributes()

    def restore(self) -> None:
        """Sets the attributes to copies of those saved last."""
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        """Sets the attributes to those of rank 0, and saves them. Collective."""
        if self._names:
            for name, value in self._bcast_object({name: getattr(self, name) for name in self._names}).items():
                setattr(self, name, value)
        self._save_attributes()

    def _layout(self) -> Layout:
        return {name: Part(VALUE) for name in self._names}

    def _hand_over(self) -> Any:
        return self._saved

    def _take_over(self, saved: Any) -> None:
        require_same_names(saved, self._names)
        for name, value in saved.items():
            setattr(self, name, value)

    def _save_attributes(self) -> None:
        self._saved = {name: _copied(name, getattr(self, name)) for name in self._names}


def require_same_names(saved: Iterable[str], own: Iterable[str]) -> None:
    """Raises InvalidArgumentError if a snapshot has the values `saved` and the state of the program has others."""
    missing, unknown = sorted({*own} - {*saved}), sorted({*saved} - {*own})
    errors.require(
        not missing and not unknown,
        f"it has no {', '.join(missing)}" if missing else f"it has also {', '.join(unknown)}",
    )


def _say_what_is_awaited() -> None:
    say(
        "rank 0 waits in state.commit() for processes that the launcher has started or asked to leave "
        f"({_growth.announced()}); look at their output"
    )


def _takes_name(broadcast: Broadcast) -> bool:
    with suppress(TypeError, ValueError):  # a function in C may have no signature
        return "name" in inspect.signature(broadcast).parameters
    return False


def _copied(name: str, value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise errors.InvalidArgumentError(
            f"the value {name} of an elastic state cannot be copied ({type(error).__name__}: {error}); keep it outside "
            "of the state, and make it again in a reset callback"
        ) from error


def _broadcast_object(value: Any, name: str | None = None) -> Any:
    if basics.size() == 1:
        return value
    # Not every framework comes with numpy.
    from sirtaki.objects import broadcast_object

    return broadcast_object(value, name=name)
