"""Compression for TensorFlow: the choices of sirtaki.compression, and casts of tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki.compression import Choice, Compressor, Methods, NoneCompressor, choice_of

__all__ = ["Choice", "Compression", "Compressor", "NoneCompressor", "choice_of"]


class _Cast(Compressor):
    _dtype: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor to send, and the context that decompress() needs."""
        if not tensor.dtype.is_floating or tensor.dtype == cls._dtype:
            return tensor, None
        return tf.cast(tensor, cls._dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns the received tensor in its original dtype."""
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
    """Choices of compression; see sirtaki.compression."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor
