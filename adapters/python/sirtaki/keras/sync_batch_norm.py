"""SyncBatchNormalization: batch normalization with the statistics of the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras

from sirtaki import basics, errors
from sirtaki.tensorflow.ops import Average, allreduce


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """keras.layers.BatchNormalization that in training uses mean and variance over the batches of all ranks.

    The batches of all ranks have the same weight, as in Horovod, so they should have the same size. Collective in
    training, forward and backward; the moving statistics are the same on all ranks.

    Args:
        fused: accepted as in Horovod; must be False.
        **named: arguments of keras.layers.BatchNormalization.

    Raises:
        ValueError: `fused` is not False.
        UnsupportedError: Keras does not run on TensorFlow, or `renorm` or a mask is given.
    """

    def __init__(self, fused: bool = False, **named: Any) -> None:
        errors.require(fused is False, f"fused is {fused!r}; SyncBatchNormalization needs fused=False")
        if keras.backend.backend() != "tensorflow":
            raise errors.UnsupportedError("SyncBatchNormalization needs Keras on TensorFlow")
        if named.get("renorm"):
            raise errors.UnsupportedError("SyncBatchNormalization with renorm; leave one of them out")
        super().__init__(**named)

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        if mask is not None:
            raise errors.UnsupportedError("SyncBatchNormalization with a mask; use keras.layers.BatchNormalization")
        mean, variance = super()._moments(inputs, mask)
        if basics.size() == 1:
            return mean, variance
        square = keras.ops.square
        mean, squares = keras.ops.unstack(allreduce(keras.ops.stack([mean, variance + square(mean)]), op=Average))
        return mean, squares - square(mean)
