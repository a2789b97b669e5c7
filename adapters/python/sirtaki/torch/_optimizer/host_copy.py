"""Local updates of tensors on a GPU: the runtime works on copies in memory of the host."""

from __future__ import annotations

import torch
from torch import Tensor


def on_gpu(tensor: Tensor) -> bool:
    """The host cannot read its memory."""
    return tensor.is_cuda


class HostCopies:
    """Tensors of a model, and those that the runtime sees: the same on the CPU, a copy on the host elsewhere."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def add(self, tensor: Tensor) -> Tensor:
        """What the runtime works on; whoever keeps this object keeps the memory."""
        memory = tensor.detach()
        if not on_gpu(memory):
            return memory
        pinned = torch.cuda.is_available()
        how = {"dtype": memory.dtype, "device": "cpu", "pin_memory": pinned}
        copy = torch.empty_strided(memory.shape, memory.stride(), **how)
        self._pairs.append((memory, copy))
        return copy

    def copy_to_host(self) -> None:
        """Copies hold what the current streams have made of the model; waits for that."""
        for memory, copy in self._pairs:
            copy.copy_(memory, non_blocking=True)
        for device in {memory.device for memory, _ in self._pairs if memory.is_cuda}:
            torch.cuda.current_stream(device).synchronize()

    def copy_to_device(self) -> None:
        """The model is what the copies hold, for what the current streams are given from now on."""
        with torch.no_grad():
            for memory, copy in self._pairs:
                memory.copy_(copy, non_blocking=True)
