"""Operations by name that the survivors of a loss make again, in elastic jobs outside of elastic.run().

Behind each of them the ranks wait in a barrier, so no rank leaves an operation before all ranks hold its result, and at
most one is in doubt when a rank is lost; `survivors` has the rest. Jobs that are not elastic have no barrier.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from sirtaki import errors
from sirtaki.ops import Ops
from sirtaki.torch._adapter import torch_ops
from sirtaki.torch._optimizer.survivors import Operation, survivors

Result = TypeVar("Result")


class _State(threading.local):
    #: Operations of this thread are part of another one, or inside of a backward pass.
    inside = False


_state = _State()


def repeated(
    ops: Ops,
    attempt: Callable[[], Result],
    tensors: Sequence[Any] = (),
    root_rank: int | None = None,
    in_place: bool = False,
) -> Result:
    """Returns the result of `attempt`, which makes operations by name and waits for them; again after a loss.

    A step in flight gets its fate at the same time. Only operations of the main thread among all ranks, on host memory,
    are made again.

    Args:
        ops: operations among the ranks of a process set.
        attempt: called again in another session, where ranks may have other numbers.
        tensors: the tensors that it sends.
        root_rank: the root of a broadcast.
        in_place: it overwrites `tensors`, which get their values back before another call.

    Raises:
        RanksChangedError: a rank was lost, and the program has an optimizer for which every loss is an error, or the
            root of a broadcast was lost.
    """
    if not survivors.elastic:
        return attempt()
    if not _are_repeated(ops, tensors):
        with once():  # all parts of a call or none
            return attempt()
    operation = Operation(root_rank)
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors if in_place]
    while True:
        survivors.check_root()
        operation.complete = False
        try:
            with once():
                result = attempt()
                operation.complete = True
                torch_ops.start_one(torch_ops.barrier("sirtaki.operation")).wait()
        except errors.RanksChangedError:
            if not survivors.go_on():
                raise
            if survivors.regroup(operation):
                return result
        else:
            survivors.operations += 1
            return result
        with torch.no_grad():
            for tensor, values in kept:
                tensor.copy_(values)


@contextmanager
def once() -> Iterator[None]:
    """Returns a context in which operations are made once, and a loss is an error."""
    before, _state.inside = _state.inside, True
    try:
        yield
    finally:
        _state.inside = before


def _are_repeated(ops: Ops, tensors: Sequence[Any]) -> bool:
    if _state.inside or ops is not torch_ops or not survivors.repeats():
        return False
    on_host = all(isinstance(tensor, Tensor) and tensor.device.type == "cpu" for tensor in tensors)
    return on_host and threading.current_thread() is threading.main_thread()
