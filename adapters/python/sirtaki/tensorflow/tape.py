# ruff: noqa: PLR0917  (Horovod's arguments)
"""DistributedGradientTape: a tf.GradientTape whose gradients are combined over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sirtaki import basics, errors
from sirtaki._rank_local_variables import RankLocalVariables, trainable_weights_of
from sirtaki.errors import require
from sirtaki.local_updates import local_choice
from sirtaki.ops import ReduceOp
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.tensorflow._op_calls import public
from sirtaki.tensorflow.compression import Choice, Compression
from sirtaki.tensorflow.gradients import GradientReducer, choose


class _DistributedTape:
    """See DistributedGradientTape()."""

    def __init__(self, tape: tf.GradientTape, reducer: GradientReducer, ranks: ProcessSet, scale: bool) -> None:
        self._tape = tape
        self._reducer = reducer
        self._ranks = ranks
        self._local = RankLocalVariables(scale)

    def __enter__(self) -> Any:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def register_local_source(self, source: Any) -> None:
        """Keeps the gradient of a variable or tensor local: gradient() does not combine it.

        All ranks register the same. The gradient is divided by the number of ranks unless scale_local_gradients=False.
        """
        self._local.add(source)

    @public
    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False, **named: Any
    ) -> Any:
        """Returns the gradients of tf.GradientTape.gradient(), combined over all ranks. Collective.

        Args:
            target: see tf.GradientTape.
            sources: a variable or tensor, or lists and dicts of them, the same on all ranks.
            output_gradients: see tf.GradientTape.
            use_generic_names: accepted as in Horovod; not used.
            **named: unconnected_gradients, as in tf.GradientTape.

        Returns:
            Gradients in the structure of `sources`; None without a gradient on any rank.
        """
        require(
            isinstance(use_generic_names, bool),
            f"use_generic_names is {use_generic_names!r}, not a bool; give unconnected_gradients by name",
        )
        _refuse_local_updates()
        grads = self._tape.gradient(target, sources, output_gradients, **named)
        flat = tf.nest.flatten(grads, expand_composites=False)
        variables = tf.nest.flatten(sources, expand_composites=False)
        combined = self._local.reduce(
            self._reducer.reduce, flat, variables, self._ranks.size() if self._ranks.included() else 1
        )
        return tf.nest.pack_sequence_as(grads, combined, expand_composites=False)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Returns gradient() as two lists of (source, gradient): local sources, and the others."""
        grads = self.gradient(target, sources, output_gradients, use_generic_names)
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(grads, expand_composites=False), strict=True))
        local = [pair for pair in pairs if pair[0] in self._local]
        return local, [pair for pair in pairs if pair[0] not in self._local]


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
    """Wraps a tape; gradient() of the result combines gradients over all ranks.

    Args:
        gradtape: the tape, used before or after this call.
        device_dense: accepted as in Horovod; not used.
        device_sparse: accepted as in Horovod; not used.
        compression: compression of gradients; see sirtaki.compression.
        sparse_as_dense: converts IndexedSlices to dense tensors first, instead of gathering them.
        op: Average (default), Sum, Min, Max or Product.
        gradient_predivide_factor: with Average: splits the division, by this factor before the sum, the rest
            afterwards.
        num_groups: accepted as in Horovod; the runtime plans fusion.
        groups: accepted as in Horovod; the runtime plans fusion.
        process_set: the ranks that take part; all by default. On other ranks gradient() returns local gradients.
        scale_local_gradients: divides gradients of local sources (register_local_source()) by the number of ranks.

    Raises:
        ValueError: an argument is wrong.
    """
    del device_dense, device_sparse, num_groups, groups
    choices = choose(
        compression=compression,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    reducer = GradientReducer("tensorflow.tape", choices)
    return _DistributedTape(gradtape, reducer, process_set, scale_local_gradients)


def PartialDistributedGradientTape(  # noqa: N802  (Horovod's name)
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
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes a DistributedGradientTape() that does not combine the gradients of some layers.

    Args:
        gradtape: the tape, used before or after this call.
        device_dense: accepted as in Horovod; not used.
        device_sparse: accepted as in Horovod; not used.
        compression: see DistributedGradientTape().
        sparse_as_dense: see DistributedGradientTape().
        op: see DistributedGradientTape().
        gradient_predivide_factor: see DistributedGradientTape().
        num_groups: accepted as in Horovod; not used.
        groups: accepted as in Horovod; not used.
        process_set: see DistributedGradientTape().
        local_layers: a layer of Keras, or several, with existing weights; the same on all ranks.
        scale_local_gradients: see DistributedGradientTape().

    Raises:
        ValueError: an argument is wrong.
    """
    local = trainable_weights_of(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in local:
        tape.register_local_source(variable)
    return tape
