"""Keras on TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from sirtaki.tensorflow.functions import broadcast_
from sirtaki.tensorflow.gradients import Choices, GradientReducer, choose

_numbers = itertools.count()


class _Reducer(GradientReducer):
    """See sirtaki.keras._backend.Reducer."""

    def watch(self, variables: Sequence[Any]) -> None:
        """Gradients are known when they are given."""

    def applied(self) -> None:
        """Nothing is kept."""


class TensorFlowBackend:
    """See sirtaki.keras._backend.Backend."""

    def choose(self, **arguments: Any) -> Choices:
        """Checks how gradients are to be combined."""
        return choose(**arguments)

    def reducer(self, choices: Choices) -> _Reducer:
        """For one optimizer."""
        return _Reducer(f"keras.optimizer.{next(_numbers)}", choices)

    def broadcast(self, variables: Sequence[Any], root_rank: int) -> None:
        """Overwrites Keras variables with those of a rank."""
        broadcast_(list(variables), root_rank, "keras.variables")

    def in_branch(self) -> bool:
        """In the graph of a branch."""
        return not tf.executing_eagerly() and type(tf_ops.get_default_graph()).__name__ == "CondBranchFuncGraph"
