# ruff: noqa: PLR0917  (Horovod's arguments)
"""DistributedGradientTape: a tf.GradientTape whose gradients are combined over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki import basics, errors
from sirtaki.local_updates import local_choice
from sirtaki.ops import ReduceOp
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.tensorflow._calls import public
from sirtaki.tensorflow.compression import Choice, Compression
from sirtaki.tensorflow.gradients import GradientReducer, choose


class _DistributedTape:
    """See DistributedGradientTape()."""

    def __init__(self, tape: tf.GradientTape, reducer: GradientReducer) -> None:
        self._tape = tape
        self._reducer = reducer

    def __enter__(self) -> Any:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @public
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **named: Any) -> Any:
        """As tf.GradientTape's, combined over all ranks. Collective; None where no rank has a gradient.

        Args:
            target: as tf.GradientTape's.
            sources: a variable or tensor, or lists and dicts of them, the same on all ranks.
            output_gradients: as tf.GradientTape's.
            **named: unconnected_gradients, as tf.GradientTape's.
        """
        _refuse_local_updates()
        grads = self._tape.gradient(target, sources, output_gradients, **named)
        flat = tf.nest.flatten(grads, expand_composites=False)
        variables = tf.nest.flatten(sources, expand_composites=False)
        return tf.nest.pack_sequence_as(grads, self._reducer.reduce(flat, variables), expand_composites=False)


def _refuse_local_updates() -> None:
    if local_choice(None, basics.option("local.updates")) is not None:
        raise errors.UnsupportedError(
            f'local.updates is "{basics.option("local.updates")}", and a tape does not see the steps that follow its '
            'gradients: local updates are made by DistributedOptimizer(local_updates=...); set the option to "1" here'
        )


def DistributedGradientTape(  # noqa: N802  (Horovod's name)
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Choice = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp | None = None,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape whose gradient() combines over all ranks.

    Args:
        gradtape: the tape, used before or after this call.
        device_dense: accepted as in Horovod; means nothing here.
        device_sparse: accepted as in Horovod; means nothing here.
        compression: how gradients travel; see sirtaki.compression.
        sparse_as_dense: makes IndexedSlices dense first, instead of gathering them.
        op: Average (default), Sum, Min, Max or Product.
        gradient_predivide_factor: with Average: divided by it before adding up, and the rest after.
        num_groups: accepted as in Horovod; the runtime makes groups as they suit the network.
        groups: accepted as in Horovod; see num_groups.
        process_set: the ranks that take part; all by default.
        scale_local_gradients: accepted as in Horovod; there are no local sources.

    Raises:
        ValueError: an argument is wrong.
    """
    del device_dense, device_sparse, num_groups, groups, scale_local_gradients
    choices = choose(
        compression=compression,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    return _DistributedTape(gradtape, GradientReducer("tensorflow.tape", choices))
