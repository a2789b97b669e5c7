"""Backend of Keras on TensorFlow."""

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
    """Implements sirtaki.keras._backend.Reducer.

    With local updates a function that is traced once averages gradients in some steps only, so that switch is a
    variable.
    """

    def __init__(self, name: str, choices: ReduceOptions, local: bool) -> None:
        super().__init__(name, choices)
        self.name = name
        self._local = local
        self._alone = False
        #: A step call is running, which writes the variable `averages` at its end.
        self.in_step_call = False
        with tf.init_scope():
            #: Inverse of `alone`, for traced functions.
            self.averages: Any = tf.Variable(True, trainable=False) if local else None
            #: Seconds in which the last step only waited for gradients.
            self.waited: Any = tf.Variable(0.0, trainable=False, dtype=tf.float64) if local else None

    @property
    def alone(self) -> bool:
        """True while nothing is sent."""
        return self._alone

    @alone.setter
    def alone(self, alone: bool) -> None:
        self._alone = alone
        if not self.in_step_call:
            self.averages.assign(not alone)

    @public
    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the combined gradients or, for a step of this rank alone, its own."""
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

    # AutoGraph cannot rewrite a function without statements, and would warn every program.
    @tf.autograph.experimental.do_not_convert
    def watch(self, variables: Sequence[Any]) -> None:
        """Does nothing: gradients come with their variables."""

    @tf.autograph.experimental.do_not_convert
    def applied(self) -> None:
        """Does nothing: no gradient is kept."""


class _CopiedArrays:
    """Implements sirtaki.keras._backend.ModelArrays with copies, because TensorFlow moves the memory of variables."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        self.arrays = [np.zeros(tuple(v.shape), tf.as_dtype(v.dtype).as_numpy_dtype) for v in variables]
        #: Values from a running function, which orders reads and writes of variables itself.
        self.given: Sequence[Any] | None = None
        self.written = False

    def pull(self) -> None:
        """Copies the variables, unless a running function is going to write the arrays to them."""
        if self.given is not None and self.written:
            return
        if self.given is None and not tf.executing_eagerly():
            raise errors.UnsupportedError("drain() and similar calls of local updates belong outside of tf.function")
        values = [tf.convert_to_tensor(v) for v in self.variables] if self.given is None else self.given
        for array, value in zip(self.arrays, values, strict=True):
            np.copyto(array, np.asarray(value))

    def push(self) -> None:
        """Copies back to the variables, or makes the running function do so."""
        if self.given is not None:
            self.written = True
            return
        self.assign([self._tensor(i) for i in range(len(self.arrays))])

    def assign(self, values: Sequence[Any]) -> None:
        """Overwrites the variables."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def assign_if(self, wanted: Any) -> None:
        """Overwrites the variables with the arrays if `wanted` is true; for traced functions."""

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
        # Copied, because a tensor may share the memory of its array.
        return tf.convert_to_tensor(self.arrays[index].copy())


class TensorFlowBackend:
    """Implements sirtaki.keras._backend.Backend."""

    def choose(self, **arguments: Any) -> ReduceOptions:
        """Returns checked options of the reduction."""
        return choose(**arguments)

    def group_size(self, choices: ReduceOptions) -> int:
        """Returns the number of participating ranks."""
        return choices.process_set.size()

    def reducer(self, choices: ReduceOptions, local: bool) -> _Reducer:
        """Returns a reducer for one optimizer."""
        return _Reducer(f"keras.optimizer.{next(_numbers)}", choices, local)

    def memory(self, variables: Sequence[Any]) -> _CopiedArrays:
        """Returns the arrays of these variables."""
        return _CopiedArrays(variables)

    @public
    def after_step(self, optimizer: Any, reducer: _Reducer, training: Any) -> None:
        """Runs after_step() at once or, in a traced function, as an operation after the step.

        The operation gets the values of the variables and returns which of them to write, so TensorFlow orders reads
        and writes.
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
            # A loss reported outside of the function differs between steps, so it cannot be traced.
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
        """Returns True in the graph of a branch."""
        return not tf.executing_eagerly() and type(tf_ops.get_default_graph()).__name__ == "CondBranchFuncGraph"


def _call_or_trace(function: Callable[..., Any], inputs: list[Any]) -> Any:
    """Returns the three bools of `function`: of a call in eager code, else as tensors of the traced function."""
    if tf.executing_eagerly():
        return [tf.constant(value) for value in function(*inputs)]
    outputs = tf.py_function(function, inputs, [tf.bool] * 3)
    for output in outputs:
        output.set_shape(())
    return outputs


def _mean_loss(loss: Any) -> list[float]:
    return [] if loss is None or tf.is_symbolic_tensor(loss) else [float(np.mean(np.asarray(loss)))]
