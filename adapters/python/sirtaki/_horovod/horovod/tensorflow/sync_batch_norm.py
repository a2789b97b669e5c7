"""horovod.tensorflow.sync_batch_norm."""

from sirtaki.keras.sync_batch_norm import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
