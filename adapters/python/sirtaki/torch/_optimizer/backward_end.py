"""The end of a whole backward, where optimizers submit their gradients and wait for them.

Re-entrant activation checkpointing runs a backward inside another one, and one backward may reach the parameters of
several optimizers, different ones on each rank, in different orders. So all of them share one end: first each tells the
runtime that its gradients are complete, without waiting; then each waits, in an order that all ranks share.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch.autograd import Variable
from torch.autograd.function import BackwardCFunction

from sirtaki import _core, errors

_NODE = BackwardCFunction.apply.__code__
_AUTOGRAD = vars(torch.autograd)


class BackwardParticipant(Protocol):
    """An optimizer some of whose parameters got gradients in a backward."""

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key of optimizers; all ranks get the same order."""

    def finish_backward(self) -> None:
        """Tells the runtime that the gradients are complete. Waits for no other rank."""

    def wait_at_backward_end(self) -> None:
        """Returns when the gradients may be used, if backward() promises that."""

    def fail_backward(self, why: str) -> None:
        """Aborts gradients in flight, because another optimizer could not end the backward."""


class _BackwardEnd:
    """Last callback of one backward. Only torch keeps a reference, so it is dropped with a backward that fails."""

    def __init__(self) -> None:
        self._members: dict[int, BackwardParticipant] = {}

    def add(self, member: BackwardParticipant) -> None:
        """Adds an optimizer to the end of this backward."""
        self._members[id(member)] = member

    def __call__(self) -> None:
        members = sorted(self._members.values(), key=lambda member: member.order)
        self._members.clear()
        try:
            for member in members:
                member.finish_backward()
            for member in members:
                member.wait_at_backward_end()
        except KeyboardInterrupt:
            # The waits can be repeated: step() does so.
            raise
        except BaseException as error:
            for member in members:
                member.fail_backward(f"{type(error).__name__} at the end of backward()")
            raise


@contextmanager
def interruptible_wait() -> Iterator[None]:
    """Returns a context in which a wait gives up if no rank can proceed unless this one does."""
    _core.set_gives_way(True)
    try:
        yield
    finally:
        # After the end of a session the wait itself raises the error.
        with suppress(errors.NotInitializedError):
            _core.set_gives_way(False)


def was_interrupted(error: BaseException) -> bool:
    """Returns True for the error of a wait given up in interruptible_wait(). The wait can be repeated."""
    # The error of an operation that has timed out names the tensor; that of a wait given up does not.
    return isinstance(error, TimeoutError) or (isinstance(error, errors.DeadlineError) and error.tensor is None)


#: Ends of running backwards, by the id that torch gives to each backward.
_backward_ends: WeakValueDictionary[int, _BackwardEnd] = WeakValueDictionary()


def call_at_backward_end(member: BackwardParticipant) -> None:
    """Calls `member` at the end of the running backward. Requires a call from a hook of it, once for each backward."""
    node = _outermost_function()
    if node is None:
        _add_to_end(member)
        return
    # A nested backward ends before the outer one. The callbacks run when the outer one continues with its next node.
    hooks: list[Any] = []

    def resume(grads: Any) -> None:
        del grads
        for hook in hooks:
            hook.remove()
        if hooks:
            hooks.clear()
            _add_to_end(member)

    hooks += [following.register_prehook(resume) for following, _ in node.next_functions if following is not None]


def _add_to_end(member: BackwardParticipant) -> None:
    number = torch._C._current_graph_task_id()
    end = _backward_ends.get(number)
    if end is None:
        end = _backward_ends[number] = _BackwardEnd()
        Variable._execution_engine.queue_callback(end)
    end.add(member)


def _outermost_function() -> Any:
    """Returns the autograd function whose backward() contains the outermost nested backward; None without nesting."""
    found: FrameType | None = None
    # A function without a backward inside, such as one of FSDP that runs hooks, is a part of the running one.
    runs = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        runs = runs or frame.f_globals is _AUTOGRAD
        if runs and frame.f_code is _NODE:
            found = frame
        frame = frame.f_back
    return None if found is None else found.f_locals["self"]
