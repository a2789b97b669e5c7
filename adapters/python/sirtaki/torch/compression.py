"""Compression: how gradients travel.

A choice is one of
- Compression.none: whatever the option compression.codec says;
- Compression.fp16, Compression.bf16;
- the same as text: "fp16", "bf16", and "none", which forces gradients as they are;
- a class or object of the program's own with compress() and decompress(), as in Horovod.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sirtaki import errors
from sirtaki.errors import require


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
    """The choices; see the module's text."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


_NAMES = ("none", "fp16", "bf16")
#: What may be given; the last is a class or object of the program's own.
Choice = str | type[Compressor] | Any


def choice_of(compression: Any) -> tuple[str | None, Any]:
    """(the runtime's codec, the program's own compressor): at most one is not None."""
    if isinstance(compression, str):
        require(compression in _NAMES, f'compression "{compression}" is unknown; known: {", ".join(_NAMES)}')
        return compression, None
    if compression in (NoneCompressor, FP16Compressor, BF16Compressor):
        return compression.codec, None
    if all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        return None, compression
    raise errors.InvalidArgumentError(
        f"compression is {compression!r}; it must be one of Compression, its text, or a class with compress() and "
        "decompress()"
    )
