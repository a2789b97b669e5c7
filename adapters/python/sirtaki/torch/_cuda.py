"""Tensors on a CUDA GPU: where they are, and the streams that a program uses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch


def device_id(device: torch.device) -> tuple[int, int]:
    """The sirtaki_device_type and the index of a tensor's device."""
    return (1, device.index) if device.type == "cuda" else (0, 0)


class CudaQueue:
    """The stream that is current when it is made; see sirtaki.ops.Queue."""

    __slots__ = ("_stream", "address", "device")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.current_stream(device)
        self.address: int = self._stream.cuda_stream

    def using(self) -> AbstractContextManager[Any]:
        """This one is current while that is entered."""
        return torch.cuda.stream(self._stream)

    def follow(self) -> None:
        """The stream that is current now waits for what this one has been given."""
        now = torch.cuda.current_stream(self._stream.device)
        if now != self._stream:
            now.wait_stream(self._stream)


class CudaStream:
    """A _core.Stream with tensors on a GPU: says where they are written, and where the program uses the results."""

    def __init__(self, stream: Any, device: torch.device) -> None:
        self._stream = stream
        self._device = device
        self._used: dict[int, CudaQueue] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def ready(self, slot: int, address: int, absent: bool = False) -> None:
        """A gradient is complete once the current stream has done what it was given."""
        queue = CudaQueue(self._device)
        self._used[queue.address] = queue
        self._stream.ready(slot, address, absent, queue.address)

    def wait(self) -> None:
        """The current stream may use all results."""
        self._stream.wait()
        self._follow()
        self._used.clear()

    def wait_tensors(self, slots: Sequence[int]) -> None:
        """The current stream may use these."""
        self._stream.wait_tensors(slots)
        self._follow()

    def _follow(self) -> None:
        for queue in self._used.values():
            queue.follow()
