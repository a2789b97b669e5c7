"""Compression and Compressor of the framework behind Keras."""

from __future__ import annotations

import keras

if keras.backend.backend() == "torch":
    from sirtaki.torch.compression import Compression, Compressor
else:
    from sirtaki.tensorflow.compression import Compression, Compressor  # type: ignore[assignment]

__all__ = ["Compression", "Compressor"]
