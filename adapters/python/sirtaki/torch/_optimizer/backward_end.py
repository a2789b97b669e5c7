"""The end of a whole backward, at which optimizers send their gradients and wait for them.

Re-entrant activation checkpointing runs a backward inside another one, and one backward may reach the parameters of
several optimizers, on each rank of others, in another order. So there is one end for all of them: first each tells the
runtime that its gradients are complete, which waits for nobody; then each waits, in an order that ranks have in common.
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


class BackwardParticipant(Protocol):
    """An optimizer whose parameters have got gradients in a backward."""

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts optimizers as all their ranks do."""

    def finish_backward(self) -> None:
        """Tells the runtime that the gradients are complete. Waits for no other rank."""

    def wait_at_backward_end(self) -> None:
        """Returns when the gradients may be used, where backward() promises that."""

    def fail_backward(self, why: str) -> None:
        """Another optimizer could not end the backward: gradients that are on their way are given up."""


class _BackwardEnd:
    """The last thing that one backward does. Only torch keeps it, so that it goes with a backward that fails."""

    def __init__(self) -> None:
        self._members: dict[int, BackwardParticipant] = {}

    def add(self, member: BackwardParticipant) -> None:
        """`member` takes part."""
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
    """Inside it a wait ends with an error that was_interrupted() knows when no rank can go on unless this one does."""
    _core.set_gives_way(True)
    try:
        yield
    finally:
        # After the end of a session there is nothing to be said, and the wait tells why.
        with suppress(errors.NotInitializedError):
            _core.set_gives_way(False)


def was_interrupted(error: BaseException) -> bool:
    """True of the error of a wait inside interruptible_wait() that can be repeated: what it waited for goes on."""
    # An operation that has run out of time is named.
    return isinstance(error, TimeoutError) or (isinstance(error, errors.DeadlineError) and error.tensor is None)


#: By the number that torch gives to each backward.
_backward_ends: WeakValueDictionary[int, _BackwardEnd] = WeakValueDictionary()


def call_at_backward_end(member: BackwardParticipant) -> None:
    """Has `member` called at the end of the backward that runs now. From a hook of it, once a backward."""
    node = _outermost_function()
    if node is None:
        _add_to_end(member)
        return
    # A backward inside another one ends before that does. What comes next in the outer one runs there.
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
    """The Python autograd function whose backward() has begun the outermost of the backwards around; None: none has."""
    found: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _NODE:
            found = frame
        frame = frame.f_back
    return None if found is None else found.f_locals["self"]
