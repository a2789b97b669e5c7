# ruff: noqa: PLR0917  (Horovod's arguments)
"""DistributedOptimizer with the name and the arguments of horovod.tensorflow; sirtaki.keras implements it."""

from __future__ import annotations

from typing import Any

from sirtaki import errors
from sirtaki.local_updates import LocalChoice
from sirtaki.ops import ReduceOp
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.tensorflow.compression import Choice, Compression


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Choice = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    local_updates: LocalChoice = None,
) -> Any:
    """Makes a Keras optimizer combine gradients over all ranks; see sirtaki.keras.DistributedOptimizer().

    Raises:
        UnsupportedError: the optimizer is one of TensorFlow 1.
    """
    del name, use_locking, device_dense, device_sparse, num_groups, groups
    if not hasattr(optimizer, "apply"):
        raise errors.UnsupportedError(
            f"{type(optimizer).__name__} is no optimizer of Keras 3; use one, or combine gradients with "
            "DistributedGradientTape or allreduce() before it applies them"
        )
    from sirtaki.keras import optimizer as of_keras

    return of_keras.DistributedOptimizer(
        optimizer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        local_updates=local_updates,
    )
