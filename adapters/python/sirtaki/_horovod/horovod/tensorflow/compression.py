"""horovod.tensorflow.compression."""

from sirtaki.tensorflow.compression import Compression, Compressor

__all__ = ["Compression", "Compressor"]
