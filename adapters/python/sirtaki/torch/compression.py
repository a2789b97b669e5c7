"""Compression for torch: sirtaki.compression, with casts of torch's tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from sirtaki.compression import Choice, Compressor, Method, Methods, NoneCompressor, choice_of, parts_of, without_sparse

__all__ = ["Choice", "Compression", "Compressor", "Method", "NoneCompressor", "choice_of", "parts_of", "suited"]


class _Cast(Compressor):
    _dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """The tensor to send and what decompress() needs."""
        if not tensor.dtype.is_floating_point or tensor.dtype == cls._dtype:
            return tensor, None
        return tensor.to(cls._dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """The received tensor in the dtype it had."""
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
    """The choices; see sirtaki.compression."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor


def suited(text: str, optimizer: torch.optim.Optimizer) -> str:
    """without_sparse(), unless the optimizer is SGD."""
    return text if isinstance(optimizer, torch.optim.SGD) else without_sparse(text)
