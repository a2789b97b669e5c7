"""Compression for TensorFlow: sirtaki.compression, with casts of TensorFlow's tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki.compression import Choice, Compressor, Methods, NoneCompressor, choice_of

__all__ = ["Choice", "Compression", "Compressor", "NoneCompressor", "choice_of"]


class _Cast(Compressor):
    _dtype: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The tensor to send and what decompress() needs."""
        if not tensor.dtype.is_floating or tensor.dtype == cls._dtype:
            return tensor, None
        return tf.cast(tensor, cls._dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """The received tensor in the dtype it had."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_Cast):
    """Sends floating-point values as float16."""

    runtime = True
    codec = "fp16"
    _dtype = tf.float16


class BF16Compressor(_Cast):
    """Sends floating-point values as bfloat16."""

    runtime = True
    codec = "bf16"
    _dtype = tf.bfloat16


class Compression(Methods):
    """The choices; see sirtaki.compression."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor
