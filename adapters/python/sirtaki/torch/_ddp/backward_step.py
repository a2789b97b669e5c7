"""Buckets and results of one backward through a DistributedDataParallel."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.futures import Future


@dataclass
class Bucket:
    """A bucket of one backward, whose buffer the runtime reduces in place."""

    indices: list[int]
    buffer: Tensor
    gradients: list[Tensor]
    future: Future[Any]


class Step:
    """The buckets of one backward. Its futures are set once, from any thread."""

    def __init__(self, buckets: list[Bucket], opens: bool, stream: Any) -> None:
        self.buckets = buckets
        #: The stream is still to be opened.
        self.opens = opens
        #: CUDA stream of the backward, or None.
        self.stream = stream
        #: Held by the first of the opening and its timeout.
        self.opened = threading.Lock()
        self._ended = threading.Lock()  # held by the first of results, error and timeout

    def resolve(self, results: list[Tensor]) -> None:
        """Gives the results to torch."""
        if self._ended.acquire(blocking=False):
            for bucket, result in zip(self.buckets, results, strict=True):
                bucket.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Gives the error to torch, which raises it from backward()."""
        # Torch writes the traceback behind the text, and it tells nothing about the program.
        error.__traceback__ = error.__context__ = None
        if self._ended.acquire(blocking=False):
            for bucket in self.buckets:
                bucket.future.set_exception(error)


def future_of(buffer: Tensor) -> Future[Any]:
    """Returns a future of the buffer of a bucket."""
    return Future(devices=[buffer.device]) if buffer.device.type == "cuda" else Future()


def done(buffer: Tensor) -> Future[Any]:
    """Returns a future that has the buffer as its result."""
    future = future_of(buffer)
    future.set_result(buffer)
    return future
