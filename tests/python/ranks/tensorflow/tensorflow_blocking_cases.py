"""The adapter for TensorFlow without asynchronous kernels: a waiting kernel blocks a thread; results are equal."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import sirtaki.tensorflow as hvd
    from sirtaki.tensorflow import _library

COUNT, STEPS = 12, 4


def case_it_is_said_once() -> None:
    assert not _library.asynchronous
    texts = [str(warning.message) for warning in told if "sirtaki" in warning.filename.lower()]
    assert len(texts) == 1, texts
    assert f"the callbacks of this TensorFlow {tf.__version__} are of another C++ library than Sirtaki's" in texts[0]
    assert "every operation that waits blocks one of TensorFlow's threads" in texts[0]
    assert texts[0].endswith("gradients are still combined together"), texts[0]


def case_gradients_of_a_step_are_combined() -> None:
    """More gradients than threads of TensorFlow: no rank may block on a gradient that a peer has not begun."""
    size = hvd.size()
    for traced in (True, False):
        variables = [tf.Variable(np.full((i + 1,), 1.0, np.float32), name=f"v{i}") for i in range(COUNT)]

        def step(factor: tf.Tensor, variables: list[tf.Variable] = variables) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(v * v) * factor * float(i + 1) for i, v in enumerate(variables)])
            gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign_sub(0.01 * gradient)
            return gradients

        run = tf.function(step) if traced else step
        expected = np.ones(COUNT)
        for i in range(STEPS):
            factors = [rank + 1.0 + i for rank in range(size)]
            gradients = run(tf.constant(factors[hvd.rank()]))
            for place, gradient in enumerate(gradients):
                mean = 2 * expected[place] * (place + 1) * np.mean(factors)
                assert np.allclose(gradient.numpy(), mean, rtol=1e-5), (traced, i, place, gradient, mean)
                expected[place] -= 0.01 * mean


def case_operations_by_name_wait_for_each_other() -> None:
    x = tf.constant([1.0, 2.0]) * (hvd.rank() + 1)
    total = sum(range(1, hvd.size() + 1))

    @tf.function
    def both(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        summed = hvd.allreduce(x, op=hvd.Sum)
        return summed, hvd.allgather(summed[tf.newaxis])

    for _ in range(STEPS):
        summed, gathered = both(x)
        assert summed.numpy().tolist() == [total, 2 * total]
        assert gathered.shape == (hvd.size(), 2)
        assert hvd.broadcast(x, 0).numpy().tolist() == [1.0, 2.0]
