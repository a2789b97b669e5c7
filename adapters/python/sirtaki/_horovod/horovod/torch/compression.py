"""horovod.torch.compression."""

from sirtaki.torch.compression import Compression, Compressor

__all__ = ["Compression", "Compressor"]
