"""Host copies of GPU tensors, on which the runtime works for local updates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def on_gpu(tensor: Tensor) -> bool:
    """Returns True if the host cannot read the memory of the tensor."""
    return tensor.is_cuda


class HostCopies:
    """Pairs of a tensor of the model and its copy in host memory. Tensors on the CPU need no copy."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def add(self, tensor: Tensor) -> Tensor:
        """Returns the tensor for the runtime: the tensor itself, or its copy. This object keeps it alive."""
        memory = tensor.detach()
        if not on_gpu(memory):
            return memory
        pinned = torch.cuda.is_available()
        how: dict[str, Any] = {"dtype": memory.dtype, "device": "cpu", "pin_memory": pinned}
        copy = torch.empty_strided(memory.shape, memory.stride(), **how)
        self._pairs.append((memory, copy))
        return copy

    def copy_to_host(self) -> None:
        """Updates the copies after the work queued on the current streams; waits for that."""
        for memory, copy in self._pairs:
            copy.copy_(memory, non_blocking=True)
        for device in {memory.device for memory, _ in self._pairs if memory.is_cuda}:
            torch.cuda.current_stream(device).synchronize()

    def copy_to_device(self) -> None:
        """Copies back to the model; work queued on the current streams afterwards sees it."""
        with torch.no_grad():
            for memory, copy in self._pairs:
                memory.copy_(copy, non_blocking=True)
