"""Keras on TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from sirtaki import errors
from sirtaki.tensorflow._op_calls import public, refuse_xla
from sirtaki.tensorflow.functions import broadcast_
from sirtaki.tensorflow.gradients import GradientReducer, ReduceOptions, choose

_numbers = itertools.count()


class _Reducer(GradientReducer):
    """See sirtaki.keras._backend.Reducer.

    With local updates a function that was traced once averages gradients in some steps, so that is a variable.
    """

    def __init__(self, name: str, choices: ReduceOptions, local: bool) -> None:
        super().__init__(name, choices)
        self.name = name
        self._local = local
        self._alone = False
        #: The variable is written behind the call that is running.
        self.in_step_call = False
        with tf.init_scope():
            #: As `alone` says, for functions.
            self.averages = tf.Variable(True, trainable=False) if local else None
            #: Seconds in which the last step had nothing to do but wait for gradients.
            self.waited = tf.Variable(0.0, trainable=False, dtype=tf.float64) if local else None

    @property
    def alone(self) -> bool:
        """Nothing is sent."""
        return self._alone

    @alone.setter
    def alone(self, alone: bool) -> None:
        self._alone = alone
        if not self.in_step_call:
            self.averages.assign(not alone)

    @public
    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The combined gradients, or with local updates these where this rank makes a step by itself."""
        if not self._local:
            return super().reduce(grads, variables)
        grads = [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]
        places = [i for i, grad in enumerate(grads) if grad is not None]

        def combined() -> list[Any]:
            with tf.control_dependencies([grads[i] for i in places]):
                begin = tf.timestamp()
            reduced = super(_Reducer, self).reduce(grads, variables)
            with tf.control_dependencies([reduced[i] for i in places]):
                self.waited.assign(tf.timestamp() - begin)
            return [reduced[i] for i in places]

        def own() -> list[Any]:
            self.waited.assign(0.0)
            return [tf.identity(grads[i]) for i in places]

        for i, grad in zip(places, tf.cond(self.averages, combined, own) if places else (), strict=True):
            grads[i] = grad
        return grads

    def watch(self, variables: Sequence[Any]) -> None:
        """Gradients are known when they are given."""

    def applied(self) -> None:
        """Nothing is kept."""


class _CopiedArrays:
    """See sirtaki.keras._backend.Memory: TensorFlow moves the memory of variables."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        self.arrays = [np.zeros(tuple(v.shape), tf.as_dtype(v.dtype).as_numpy_dtype) for v in variables]
        #: What a function gives that is running: it reads and writes variables in its own order.
        self.given: Sequence[Any] | None = None
        self.written = False

    def pull(self) -> None:
        """Copies variables, unless a function that is running is to write what the arrays are."""
        if self.given is not None and self.written:
            return
        if self.given is None and not tf.executing_eagerly():
            raise errors.UnsupportedError("local updates' models are made equal, or others, outside of tf.function")
        values = [tf.convert_to_tensor(v) for v in self.variables] if self.given is None else self.given
        for array, value in zip(self.arrays, values, strict=True):
            np.copyto(array, np.asarray(value))

    def push(self) -> None:
        """Copies back, or has the function do so."""
        if self.given is not None:
            self.written = True
            return
        self.assign([self._tensor(i) for i in range(len(self.arrays))])

    def assign(self, values: Sequence[Any]) -> None:
        """Overwrites the variables."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def assign_if(self, wanted: Any) -> None:
        """In a function: overwrites the variables with the arrays where `wanted` is true."""

        def write() -> Any:
            arrays = range(len(self.arrays))
            values = tf.py_function(lambda: [self._tensor(i) for i in arrays], [], [a.dtype for a in self.arrays])
            for array, value in zip(self.arrays, values, strict=True):
                value.set_shape(array.shape)
            self.assign(values)
            return tf.constant(True)

        if self.variables:
            tf.cond(wanted, write, lambda: tf.constant(False))

    def _tensor(self, index: int) -> tf.Tensor:
        # A copy: a tensor may keep the array that it is made of.
        return tf.convert_to_tensor(self.arrays[index].copy())


class TensorFlowBackend:
    """See sirtaki.keras._backend.Backend."""

    def choose(self, **arguments: Any) -> ReduceOptions:
        """Checks how gradients are to be combined."""
        return choose(**arguments)

    def group_size(self, choices: ReduceOptions) -> int:
        """How many ranks take part."""
        return choices.process_set.size()

    def reducer(self, choices: ReduceOptions, local: bool) -> _Reducer:
        """For one optimizer."""
        return _Reducer(f"keras.optimizer.{next(_numbers)}", choices, local)

    def memory(self, variables: Sequence[Any]) -> _CopiedArrays:
        """Of these variables."""
        return _CopiedArrays(variables)

    @public
    def after_step(self, optimizer: Any, reducer: _Reducer, training: Any) -> None:
        """In a function: an operation behind the step.

        It gets what the variables are and says which are to be written, so TensorFlow keeps reads and writes in order.
        """
        refuse_xla()
        memories = (training.model, training.state)
        losses = []
        if tf.is_symbolic_tensor(training.loss):
            loss, training.loss = training.loss, None
            if loss.graph is tf_ops.get_default_graph():
                losses.append(tf.reduce_mean(tf.cast(loss, tf.float64)))
        rate = tf.convert_to_tensor(optimizer.learning_rate)
        numbers = [rate, tf.convert_to_tensor(optimizer._iterations), reducer.waited.read_value(), *losses]

        def step_call(*inputs: Any) -> tuple[bool, bool, bool]:
            values = iter(inputs)
            rate, count, waited, *losses = (float(next(values)) for _ in numbers)
            # What was reported outside of the function is another number in each step.
            losses, training.loss = losses or _mean_loss(training.loss), None
            for memory in memories:
                memory.given, memory.written = [next(values) for _ in memory.variables], False
            reducer.in_step_call = True
            try:
                training.after_step(rate, int(count), losses[0] if losses else None, round(waited * 1e9))
            finally:
                reducer.in_step_call = False
                for memory in memories:
                    memory.given = None
            return not reducer.alone, memories[0].written, memories[1].written

        read = [tf.convert_to_tensor(variable) for memory in memories for variable in memory.variables]
        averages, *written = _call_or_trace(step_call, [*numbers, *read])
        reducer.averages.assign(averages)
        for memory, wanted in zip(memories, written, strict=True):
            memory.assign_if(wanted)

    def broadcast(self, variables: Sequence[Any], root_rank: int) -> None:
        """Overwrites Keras variables with those of a rank."""
        broadcast_(list(variables), root_rank, "keras.variables")

    def in_branch(self) -> bool:
        """In the graph of a branch."""
        return not tf.executing_eagerly() and type(tf_ops.get_default_graph()).__name__ == "CondBranchFuncGraph"


def _call_or_trace(function: Callable[..., Any], inputs: list[Any]) -> Any:
    """What it returns, three of bool: as numbers, or as tensors of the function that is being traced."""
    if tf.executing_eagerly():
        return [tf.constant(value) for value in function(*inputs)]
    outputs = tf.py_function(function, inputs, [tf.bool] * 3)
    for output in outputs:
        output.set_shape(())
    return outputs


def _mean_loss(loss: Any) -> list[float]:
    return [] if loss is None or tf.is_symbolic_tensor(loss) else [float(np.mean(np.asarray(loss)))]
