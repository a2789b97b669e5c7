"""Pickling of tensors for snapshots: their memory is a buffer beside the pickle, so it is written without a copy."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def reduce_tensor(tensor: Tensor) -> Any:
    """Returns how to pickle a tensor, as __reduce_ex__(5) does. Those on a GPU come back in host memory."""
    plain = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    if not plain or tensor.numel() == 0 or tensor.device.type == "meta":
        return tensor.__reduce_ex__(5)
    whole = tensor.detach().cpu().contiguous()
    # Tensors have no buffer protocol, and numpy knows only some of their dtypes.
    memory: Any = (ctypes.c_ubyte * (whole.numel() * whole.element_size())).from_address(whole.data_ptr())
    memory.owner = whole
    return _make_tensor, (pickle.PickleBuffer(memory), whole.dtype, tuple(whole.shape))


def _make_tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)


def gpus_of(value: Any) -> set[torch.device]:
    """Returns the GPUs on which a state_dict() has tensors."""
    return {tensor.device for tensor in _tensors_of(value) if tensor.is_cuda}


def _tensors_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_of(item)
