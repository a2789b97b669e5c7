"""CUDA devices and streams of torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch


def device_id(device: torch.device) -> tuple[int, int]:
    """Returns the sirtaki_device_type and the index of a device."""
    return (1, device.index) if device.type == "cuda" else (0, 0)


def open_stream(opening: Callable[[], Any], devices: Sequence[torch.device]) -> Any:
    """Returns the stream that `opening` opens for tensors on these devices; a CudaStream if one of them is a GPU."""
    gpu = next((device for device in devices if device.type == "cuda"), None)
    if gpu is None:
        return opening()
    # The runtime now allocates its memory on the GPU, most of which the allocator of torch may keep unused.
    torch.cuda.empty_cache()
    return CudaStream(opening(), gpu)


class CudaQueue:
    """Holds the stream that is current at construction; implements sirtaki.ops.Queue."""

    __slots__ = ("_stream", "address", "device")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.current_stream(device)
        self.address: int = self._stream.cuda_stream

    def using(self) -> AbstractContextManager[Any]:
        """Returns a context in which this stream is current."""
        return torch.cuda.stream(self._stream)

    def follow(self) -> None:
        """Makes the current stream wait for the work queued on this stream so far."""
        now = torch.cuda.current_stream(self._stream.device)
        if now != self._stream:
            now.wait_stream(self._stream)


class CudaStream:
    """Wraps a _core.Stream of GPU tensors: names the producing stream, and orders consumers after results."""

    def __init__(self, stream: Any, device: torch.device) -> None:
        self._stream = stream
        self._device = device
        self._used: dict[int, CudaQueue] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def ready(self, slot: int, address: int, absent: bool = False) -> None:
        """Submits a gradient, which is complete once the work queued on the current stream is done."""
        queue = CudaQueue(self._device)
        self._used[queue.address] = queue
        self._stream.ready(slot, address, absent, queue.address)

    def wait(self, timeout_ms: int = -1) -> None:
        """Waits for all results; work queued on the current stream afterwards sees them."""
        self._stream.wait(timeout_ms)
        self._follow()
        self._used.clear()

    def wait_tensors(self, slots: Sequence[int]) -> None:
        """Waits for some results; work queued on the current stream afterwards sees them."""
        self._stream.wait_tensors(slots)
        self._follow()

    def _follow(self) -> None:
        for queue in self._used.values():
            queue.follow()
