"""Waiting for operations on torch tensors: synchronize(), poll(), get_future()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sirtaki import errors
from sirtaki.ops import GroupHandle, Handle
from sirtaki.torch._cuda import CudaQueue


def _checked(handle: Handle | GroupHandle) -> Handle | GroupHandle:
    if not isinstance(handle, Handle | GroupHandle):
        raise errors.InvalidArgumentError(
            f"expected the handle that an _async function returned, not {handle!r} of type {type(handle).__name__}"
        )
    return handle


def synchronize(handle: Handle | GroupHandle | Callable[[], Tensor]) -> Any:
    """Waits for an operation and returns its result: a tensor, or a list of tensors for grouped operations.

    The result of alltoall_async() is a pair: the tensor, and the rows received from each rank. A second call for the
    same handle returns the same result.

    Raises:
        ValueError: `handle` comes from no _async function.
        HorovodInternalError: the operation failed; the text names operation, rank and tensor.
    """
    return handle() if callable(handle) else _checked(handle).wait()


def poll(handle: Handle | GroupHandle) -> bool:
    """Returns True if synchronize() of `handle` would not block."""
    return _checked(handle).poll()


def get_future(handle: Handle | GroupHandle) -> torch.futures.Future[Any]:
    """Returns a torch future that gets the result of the operation `handle`, or its error."""
    handle = _checked(handle)
    handles = handle.handles if isinstance(handle, GroupHandle) else [handle]
    # A future must know its GPUs before: torch makes consumers wait for the streams of these.
    devices: list[Any] = list({one.queue.device for one in handles if isinstance(one.queue, CudaQueue)})
    future: torch.futures.Future[Any] = torch.futures.Future(devices=devices or None)

    def resolve() -> None:
        try:
            result = handle.wait()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    handle.on_done(resolve)
    return future
