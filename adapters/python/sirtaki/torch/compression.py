"""Compression for torch: the choices of sirtaki.compression, and casts of torch tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from sirtaki.compression import (
    Choice,
    Compressor,
    Method,
    Methods,
    NoneCompressor,
    choice_of,
    for_optimizer,
    kind_of,
    parts_of,
)

__all__ = ["Choice", "Compression", "Compressor", "Method", "NoneCompressor", "choice_of", "parts_of", "suited"]


class _Cast(Compressor):
    _dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Returns the tensor to send, and the context that decompress() needs."""
        if not tensor.dtype.is_floating_point or tensor.dtype == cls._dtype:
            return tensor, None
        return tensor.to(cls._dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Returns the received tensor in its original dtype."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_Cast):
    """Sends floating-point values as float16."""

    runtime = True
    codec = "fp16"
    _dtype = torch.float16


class BF16Compressor(_Cast):
    """Sends floating-point values as bfloat16."""

    runtime = True
    codec = "bf16"
    _dtype = torch.bfloat16


class Compression(Methods):
    """Choices of compression; see sirtaki.compression."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor


def suited(text: str, optimizer: torch.optim.Optimizer | None) -> str:
    """Returns `text` for the kind of the optimizer, None being an unknown one; see for_optimizer()."""
    return for_optimizer(text, kind_of(optimizer, torch.optim))
