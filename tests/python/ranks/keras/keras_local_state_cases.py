"""State of Keras optimizers when local updates roll models back."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np

import sirtaki.keras as hvd
from ranks.keras.keras_cases import BATCH, TORCH, network
from ranks.keras.keras_local_cases import differ, loop_of, same_data


def read(variable: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(variable))


def trained(optimizer: Any, steps: int, grad: Any, loss: float = 1.0) -> tuple[Any, list[float]]:
    """Returns a variable and the distance that each step moved it; steps that raised an alarm are left out."""
    if not optimizer.built:
        optimizer.build([keras.Variable(np.ones(3, np.float32))])
    (variable,) = optimizer._trainable_variables
    moved = []
    for _ in range(steps):
        before, alarms = read(variable), optimizer.local_stats().get("alarms")
        optimizer.report_loss(loss)
        optimizer.apply([keras.ops.convert_to_tensor(np.asarray(grad, np.float32))], [variable])
        if optimizer.local_stats()["alarms"] == alarms:
            moved.append(float(np.abs(read(variable) - before).max()))
    return variable, moved


def case_copies_of_the_model_count_as_exposed() -> None:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001), local_updates=4)
    trained(optimizer, 2, [1.0, -2.0, 0.5])
    training = optimizer._sirtaki.local
    pull, before = training._pull, training.exposed_seconds

    def slow() -> None:
        until = time.perf_counter() + 0.1
        while time.perf_counter() < until:
            pass
        pull()

    training._pull = slow
    trained(optimizer, 1, [1.0, -2.0, 0.5])
    assert training.exposed_seconds - before >= 0.1
    before = training.exposed_seconds
    optimizer.drain()
    assert training.exposed_seconds - before >= 0.1


def case_a_function_writes_variables_itself() -> None:
    """TensorFlow does not order writes that it cannot see."""
    if TORCH:
        return
    import tensorflow as tf

    model = network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), local_updates="fixed:steps=3,delay=0,warmup=6")
    step = loop_of(model, optimizer, True)
    x, y = (tf.convert_to_tensor(v[:BATCH]) for v in same_data(hvd.rank()))
    step(x, y)
    reducer, inside = optimizer._sirtaki.reducer, []
    assign = reducer.averages.assign
    reducer.averages.assign = lambda value: (inside.append(reducer.alone), assign(value))
    seen = set()
    for _ in range(40):
        step(x, y)
        seen.add(reducer.alone)
        assert reducer.alone != bool(reducer.averages.numpy())
    assert seen == {True, False}, seen
    assert not inside
    with optimizer.synchronous():
        assert inside


def case_steps_stay_small_after_a_rollback() -> None:
    """The rollback comes late in a training, when Adam no longer corrects the bias of its moments."""
    rate, grad = 0.001, [1.0, -2.0, 0.01]
    for state in (0, 1):
        how = hvd.LocalUpdates("fixed:steps=4,delay=0,warmup=0", optimizer_state=state, outer="none")
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(rate, beta_2=0.99), local_updates=how)
        variable, moved = trained(optimizer, 110, grad)  # as many as 1,100 with the default of 0.999
        assert max(moved[10:]) < 1.1 * rate, max(moved)
        before = sum(optimizer.local_stats()["alarms"].values())
        _, moved = trained(optimizer, 9, grad, loss=float("nan"))
        assert sum(optimizer.local_stats()["alarms"].values()) > before, optimizer.local_stats()
        _, more = trained(optimizer, 60, grad)
        assert 0 < max(moved + more) < 1.1 * rate, moved + more
        assert min(more[30:]) > 0.5 * rate, more
        optimizer.drain()
        assert not differ([variable])


def case_moments_that_are_not_finite_come_from_other_ranks() -> None:
    how = hvd.LocalUpdates("fixed:steps=4,delay=0,warmup=0", optimizer_state=1)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001), local_updates=how)
    variable, _ = trained(optimizer, 21, [1.0, -2.0, 0.5])
    state = [v for v in optimizer.variables if len(v.shape) > 0]
    before = [read(v) for v in state]
    if hvd.rank() == 1:
        for v in state:
            v.assign(np.full(3, np.nan, np.float32))
    with optimizer.synchronous():  # makes optimizers equal
        for v, kept in zip(state, before, strict=True):
            assert np.allclose(read(v), kept, rtol=0.1), (v.path, read(v), kept)
        assert not differ([variable, *state])
