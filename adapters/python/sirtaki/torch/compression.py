"""Compression.none, Compression.fp16, Compression.bf16: how gradients travel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sirtaki import errors


class Compressor:
    """Base class, as in Horovod. Inside DistributedOptimizer the runtime casts on the wire; see `codec`."""

    #: Name of the codec of the runtime; None leaves the choice to the option compression.codec.
    codec: str | None = None
    _dtype: torch.dtype | None = None

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """The tensor to send and what decompress() needs."""
        if cls._dtype is None or not tensor.dtype.is_floating_point or tensor.dtype == cls._dtype:
            return tensor, None
        return tensor.to(cls._dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """The received tensor in the dtype it had."""
        return tensor if ctx is None else tensor.to(ctx)


class NoneCompressor(Compressor):
    """Sends what there is. In DistributedOptimizer: whatever the option compression.codec says."""


class FP16Compressor(Compressor):
    """Sends floating-point values as float16."""

    codec = "fp16"
    _dtype = torch.float16


class BF16Compressor(Compressor):
    """Sends floating-point values as bfloat16."""

    codec = "bf16"
    _dtype = torch.bfloat16


class Compression:
    """The choices."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


_NAMES: dict[str, type[Compressor]] = {"none": NoneCompressor, "fp16": FP16Compressor, "bf16": BF16Compressor}


def codec_of(compression: Any) -> str | None:
    """The runtime's codec for a Compressor or a name. Compression.none makes no choice, "none" does."""
    if isinstance(compression, str):
        if compression not in _NAMES:
            raise errors.InvalidArgumentError(f'compression "{compression}" is unknown; known: {", ".join(_NAMES)}')
        return compression
    if isinstance(compression, type) and issubclass(compression, Compressor):
        if compression.codec is None and compression is not NoneCompressor:
            raise errors.UnsupportedError(
                f"{compression.__name__}: compressors of one's own do not work inside DistributedOptimizer; use "
                "Compression.none, fp16 or bf16"
            )
        return compression.codec
    raise errors.InvalidArgumentError("compression must be Compression.none, fp16, bf16 or one of their names")
