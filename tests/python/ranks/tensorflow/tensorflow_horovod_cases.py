"""Sessions of TensorFlow 1, SyncBatchNormalization, states and helpers."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

import sirtaki.tensorflow as hvd
from ranks.tensorflow.tensorflow_cases import refused, same


def reference_variable(value: Any, name: str) -> Any:
    """Returns a variable of the kind that TensorFlow 1 made by default."""
    return tf.compat.v1.get_variable(name, initializer=value, use_resource=False)


def case_variables_of_a_session_are_broadcast() -> None:
    """A session runs the tensors that broadcasts return in graphs; afterwards variables have the values of the root."""
    rank, root = hvd.rank(), hvd.size() - 1
    for kind in (resource_variable_ops.ResourceVariable, reference_variable):
        for dtype in (tf.float32, tf.int32, tf.float16, tf.bool, tf.complex64):
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                made = [kind(tf.cast(tf.fill([n + 1], rank % 2), dtype), name=f"v{n}") for n in range(3)]
                session.run(tf.compat.v1.global_variables_initializer())
                got = session.run(hvd.broadcast_(made, root))
                want = [np.full(n + 1, root % 2).astype(dtype.as_numpy_dtype) for n in range(3)]
                for one, other, value in zip(got, session.run(made), want, strict=True):
                    assert one.tolist() == other.tolist() == value.tolist(), (kind, dtype, one, other)
                for broadcast in (
                    lambda v=made: hvd.broadcast_variables(v, 0),
                    lambda: hvd.broadcast_global_variables(0),
                ):
                    done = broadcast()
                    session.run(tf.compat.v1.global_variables_initializer())
                    assert session.run(done) is None
                    assert session.run(made)[2].tolist() == np.zeros(3, dtype.as_numpy_dtype).tolist()
    refused(lambda: hvd.broadcast_global_variables(0), RuntimeError, "broadcast_variables")


def case_two_broadcasts_of_variables_in_one_function() -> None:
    """The model and the optimizer are broadcast in the first step of a tf.function, as in programs for Horovod."""
    model, optimizer = ([tf.Variable(float(hvd.rank() + more)) for _ in range(2)] for more in (1, 11))

    @tf.function
    def first_step() -> None:
        hvd.broadcast_variables(model, 0)
        hvd.broadcast_variables(optimizer, 0)

    first_step()
    assert [v.numpy() for v in (*model, *optimizer)] == [1.0, 1.0, 11.0, 11.0]


def case_operations_and_gradients_of_a_session() -> None:
    size, rank = hvd.size(), hvd.rank()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.fill([2, 2], float(rank + 1))
        got = session.run(
            [
                hvd.allreduce(x),
                *tf.gradients(hvd.allgather(x), x, tf.ones([2 * size, 2]) * float(rank + 1)),
                *tf.gradients(hvd.broadcast(x, 0), x),
                hvd.allgather(x)[:, 0],
            ]
        )
        mean = (size + 1) / 2
        same_values(got[0], np.full((2, 2), mean))
        same_values(got[1], np.full((2, 2), mean))
        same_values(got[2], np.full((2, 2), float(rank == 0)))
        same_values(got[3], np.repeat(np.arange(1.0, size + 1), 2))
        wrong = hvd.allreduce(tf.ones([2 + rank]))
        refused(lambda: session.run(wrong), tf.errors.FailedPreconditionError, "disagree")
        assert hvd.broadcast_object(rank, root_rank=size - 1) == size - 1
        assert hvd.broadcast_object_fn(root_rank=0, session=session)([rank]) == [0]


def same_values(got: Any, want: np.ndarray) -> None:
    assert np.allclose(got, want), (got, want)


def case_batch_norm_takes_the_statistics_of_all_ranks() -> None:
    """Results, gradients and moving statistics equal those of one BatchNormalization of the whole batch."""
    import keras

    size, rank = hvd.size(), hvd.rank()
    for shape, axis in (((4, 3), -1), ((2, 3, 5), 1)):
        whole = np.random.default_rng(7).normal(size=(size, *shape)).astype(np.float32) * 3 + 5
        factors = np.random.default_rng(8).normal(size=(size, *shape)).astype(np.float32)
        for traced in (False, True):
            plain, synced = keras.layers.BatchNormalization(axis=axis), hvd.SyncBatchNormalization(axis=axis)

            def run(layer: Any, x: Any, factor: Any) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = layer(x, training=True)
                return y, tape.gradient(y, x, factor)

            together = (tf.reshape(tf.constant(a), [-1, *shape[1:]]) for a in (whole, factors))
            y, dx = run(plain, *together)
            step = tf.function(run) if traced else run
            own, own_dx = step(synced, tf.constant(whole[rank]), tf.constant(factors[rank]))
            assert np.allclose(own, np.reshape(y, whole.shape)[rank], atol=1e-4)
            assert np.allclose(own_dx, np.reshape(dx, whole.shape)[rank], atol=1e-4)
            assert np.allclose(synced.moving_mean, plain.moving_mean, atol=1e-4)
            assert np.allclose(synced.moving_variance, plain.moving_variance, atol=1e-4)
    refused(lambda: hvd.SyncBatchNormalization(fused=True), ValueError, "fused=False")


def case_states_of_a_training_are_kept_in_memory() -> None:
    import keras

    rank = hvd.rank()
    made = [tf.Variable([[float(rank)]]), tf.Variable([rank])]
    state = hvd.elastic.TensorFlowState(made, batch=20 + rank, epoch=10 + rank)
    state.sync()
    assert (state.batch, state.epoch, float(made[0][0, 0]), int(made[1][0])) == (20, 10, 0.0, 0)
    made[0].assign([[5.0]])
    state.batch = 21
    state.restore()
    assert (state.batch, float(made[0][0, 0])) == (20, 0.0)
    made[0].assign([[5.0]])
    state.batch = 21
    state.commit()
    made[0].assign([[6.0]])
    state.restore()
    assert (state.batch, float(made[0][0, 0])) == (21, 5.0)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
    of_model = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0)
    of_model.sync()
    before = model.layers[0].kernel.numpy()
    assert (hvd.allgather(tf.reshape(before, [1, 2])).numpy() == before[:, 0]).all()
    weights = model.trainable_variables
    optimizer.apply([tf.fill(weight.shape, 1.0 + rank) for weight in weights], weights)
    of_model.restore()
    assert (model.layers[0].kernel.numpy() == before).all()
    assert all(np.all(momentum == 0) for momentum in optimizer.variables[2:]), "as before the first step"
    optimizer.apply([tf.fill(weight.shape, 1.0 + rank) for weight in weights], weights)
    of_model.sync()
    momenta = hvd.allgather(tf.stack([tf.reduce_sum(variable) for variable in optimizer.variables[2:]])[None]).numpy()
    assert (momenta == momenta[0]).all()
    assert momenta[0].any()


def case_errors_of_graphs_in_reset_callbacks_are_those_of_the_loop() -> None:
    calls: list[str] = []

    @tf.function
    def disagree() -> Any:
        return hvd.allreduce(tf.zeros([1 + hvd.rank()]), name="disagree")

    def reset() -> None:
        calls.append("reset")
        if len(calls) == 2:
            disagree()

    @hvd.elastic.run
    def train(state: Any) -> None:
        calls.append("train")
        if len(calls) == 1:
            raise hvd.HorovodInternalError("a loss")

    state = hvd.elastic.TensorFlowState([tf.Variable(1.0)], step=0)
    state.register_reset_callbacks([reset])
    with (
        mock.patch("sirtaki.basics.is_elastic", return_value=True),
        mock.patch("sirtaki.basics.open_next_session"),
        mock.patch("sirtaki.elastic.loop._Failures.allow", return_value=True),
    ):
        train(state)
    assert calls == ["train", "reset", "reset", "train"], calls


def case_helpers_by_their_names() -> None:
    from sirtaki.tensorflow import util

    variable = tf.Variable(1.0)
    assert util.refs_to_vars(util.vars_to_refs([[variable], [variable]])) == [[variable], [variable]]
    calls = []
    counted = util._cache(lambda x: calls.append(x) or x)
    assert [counted(1), counted(1), counted(2)] == [1, 1, 2]
    assert calls == [1, 2]
    same(util._make_subgraph(lambda x: x + 1.0)(variable), np.array(2.0), "subgraph")
