"""Local updates from Keras against Keras alone, which every rank can run itself. KERAS_BACKEND selects the back end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import keras
import numpy as np

import sirtaki.keras as hvd
from ranks.keras.keras_cases import BATCH, STEPS, TORCH, data, network, same_weights

Make = Callable[[], Any]


def sgd() -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


def with_norm() -> Any:
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Input((3,)), keras.layers.Dense(5), keras.layers.BatchNormalization(momentum=0.5)]
    return keras.Sequential([*layers, keras.layers.Dense(1)])


def same_data(shard: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the batches of rank `shard`, on any rank."""
    x, y = data()
    return tuple(v.reshape(STEPS, hvd.size(), BATCH, -1)[:, shard].reshape(STEPS * BATCH, -1) for v in (x, y))


def fit(model: Any, optimizer: Any, shard: int | None = None, epochs: int = 2, **how: Any) -> Any:
    x, y = same_data(hvd.rank() if shard is None else shard)
    callbacks = how.pop("callbacks", ())
    model.compile(optimizer, loss="mse", **how)
    return model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))


def differ(variables: Any) -> bool:
    """Tells whether any rank has other values than rank 0. Collective."""
    flat = np.concatenate([np.ravel(keras.ops.convert_to_numpy(v)) for v in variables])
    gathered = hvd.allgather(flat[np.newaxis])
    return not np.array_equal(gathered, np.broadcast_to(gathered[:1], gathered.shape))


class Drift(keras.callbacks.Callback):
    """Records whether weights differ between ranks after each batch. Collective."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(differ(self.model.trainable_variables))


def case_one_step_is_the_synchronous_path() -> None:
    reference, model = network(), network()
    fit(reference, hvd.DistributedOptimizer(adam()))
    optimizer = hvd.DistributedOptimizer(adam(), local_updates=1)
    fit(model, optimizer)
    same_weights(reference, model, 0.0)
    assert optimizer.local_stats() == {}


def case_equal_data_is_one_process() -> None:
    """With 2^k ranks the mean of equal models is exact."""
    how = hvd.LocalUpdates("fixed:steps=4,delay=1,guard=off", fragments=2, outer="none")
    several = {} if TORCH else {"steps_per_execution": 3}
    for make, more in ((adam, several), (sgd, {"run_eagerly": True})):
        reference, model = network(), network()
        fit(reference, make(), shard=0, **more)
        fit(model, hvd.DistributedOptimizer(make(), local_updates=how), shard=0, **more)
        same_weights(reference, model, 1e-7)


def case_weights_are_the_mean_of_models_trained_alone() -> None:
    every = 3
    models, optimizers = [network() for _ in range(hvd.size())], []
    for model in models:
        model.compile(sgd(), loss="mse")
        optimizers.append(model.optimizer)
    shards = [same_data(rank) for rank in range(hvd.size())]
    for step in range(2 * STEPS):
        at = slice(step % STEPS * BATCH, (step % STEPS + 1) * BATCH)
        for model, (x, y) in zip(models, shards, strict=True):
            model.train_on_batch(x[at], y[at])
        if step == 0:
            # The first step averages gradients, so all optimizers hold the same state after it.
            kept = zip(*([v.numpy() for v in o.variables] for o in optimizers), strict=True)
            for variables, mean in zip(zip(*(o.variables for o in optimizers), strict=True), kept, strict=True):
                for variable in variables:
                    variable.assign(np.mean(mean, axis=0).astype(mean[0].dtype))
        if step % every == 0 or step == 2 * STEPS - 1:  # fit() ends with a drain
            means = [np.mean(w, axis=0) for w in zip(*(m.get_weights() for m in models), strict=True)]
            for model in models:
                model.set_weights(means)
    merged, drift = network(), Drift()
    how = hvd.LocalUpdates(f"fixed:steps={every},delay=0,guard=off", outer="none")
    optimizer = hvd.DistributedOptimizer(sgd(), local_updates=how)
    fit(merged, optimizer, callbacks=[drift])
    assert optimizer.local_stats()["mode"] == "local", optimizer.local_stats()
    assert drift.seen == [step % every != 0 for step in range(2 * STEPS)], drift.seen
    same_weights(models[0], merged)


def case_models_drift_and_meet() -> None:
    for how in ("fixed:steps=6,delay=2,guard=off", hvd.LocalUpdates("diloco:steps=5,guard=off", fragments=3)):
        model, drift = network(), Drift()
        optimizer = hvd.DistributedOptimizer(adam(), local_updates=how)
        fit(model, optimizer, callbacks=[drift])
        assert any(drift.seen), how
        assert not differ(model.trainable_variables), how  # fit() has ended with a drain
        x, y = same_data(hvd.rank())
        model.train_on_batch(x[:BATCH], y[:BATCH])
        assert differ(model.trainable_variables), how
        with optimizer.global_model():
            assert not differ(model.trainable_variables), how
        assert differ(model.trainable_variables), how
        optimizer.drain()
        assert not differ(model.trainable_variables), how


def case_training_learns() -> None:
    for make, how in ((adam, hvd.LocalUpdates(4, optimizer_state=1)), (sgd, "auto:warmup=4,gain=0")):
        model = network(seed=hvd.rank())  # the first step starts from the weights of rank 0
        own = fit(model, hvd.DistributedOptimizer(make(), local_updates=how), epochs=20).history["loss"]
        losses = hvd.allreduce(np.asarray(own))  # averaged: a rank that failed alone would leave the others waiting
        assert np.mean(losses[-10:]) < 0.4 * losses[0], (how, losses)  # several epochs: the loss of few samples jumps
        assert not differ(model.trainable_variables), how


def case_buffers_become_equal() -> None:
    x, y = same_data(hvd.rank())
    drift = Drift()

    class Validated(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            assert not differ(self.model.variables[:8])

    model = with_norm()
    model.compile(hvd.DistributedOptimizer(sgd(), local_updates=4), loss="mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), drift, Validated()]
    how = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0, "validation_data": (x[:4], y[:4])}
    model.fit(x, y, callbacks=callbacks, **how)
    assert any(drift.seen)
    assert len(model.non_trainable_weights) == 2
    assert not differ(model.weights)
    model.fit(x, y, callbacks=callbacks, **{**how, "epochs": 1})
    assert not differ(model.weights)


def loop_of(model: Any, optimizer: Any, traced: bool) -> Callable[[Any, Any], None]:
    """Returns a function that makes one step of a custom training loop, traced by TensorFlow or not."""
    tell = getattr(optimizer, "report_loss", lambda loss: None)
    if TORCH:

        def torch_step(x: Any, y: Any) -> None:
            model.zero_grad()
            loss = keras.ops.mean(keras.ops.square(model(x, training=True) - y))
            tell(loss)
            loss.backward()
            variables = model.trainable_variables
            optimizer.apply([v.value.grad for v in variables], variables)

        return torch_step
    import tensorflow as tf

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        tell(loss)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return tf.function(step) if traced else step


def case_loops_of_the_program() -> None:
    for traced in (False, True):
        told: list[dict[str, Any]] = []

        def interval(round_: dict[str, Any], told: list[dict[str, Any]] = told) -> int:
            told.append(round_)
            return 2 + len(told) % 2

        model = with_norm()
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), local_updates=interval)
        optimizer.buffers_of(model)
        step = loop_of(model, optimizer, traced)
        x, y = (keras.ops.convert_to_tensor(v) for v in same_data(hvd.rank()))
        for i in range(3 * STEPS):
            at = slice(i % STEPS * BATCH, (i % STEPS + 1) * BATCH)
            step(x[at], y[at])
        assert differ(model.non_trainable_weights), traced
        optimizer.drain()
        assert not differ(model.weights), traced
        assert len(told) > 3, (told, optimizer.local_stats())
        assert abs(told[-1]["lr"] - 0.05) < 1e-6, told[-1]
        assert told[-1]["loss"] > 0, told[-1]


def function_of(call: Callable[[], Any], traced: bool) -> Callable[[], Any]:
    """Returns `call`, wrapped in a tf.function if `traced`."""
    if not traced:
        return call
    import tensorflow as tf

    return tf.function(call)


def case_losses_are_those_of_their_steps() -> None:
    """The program reports losses outside of the tf.function that applies gradients."""
    for traced in (False, not TORCH):
        told: list[float] = []

        def interval(round_: dict[str, Any], told: list[float] = told) -> int:
            told.append(round_["loss"])
            return 3

        model = network()
        optimizer = hvd.DistributedOptimizer(sgd(), local_updates=interval)
        variables = model.trainable_variables
        optimizer.build(variables)
        grads = [keras.ops.zeros_like(v) for v in variables]
        apply = function_of(partial(optimizer.apply, grads, variables), traced)
        for step in range(4 * STEPS):
            loss = 1.0 - step / 100
            optimizer.report_loss(keras.ops.convert_to_tensor(loss) if step % 2 else loss)
            apply()
        assert len(told) > 3, told
        assert all(later < earlier for earlier, later in pairwise(told[1:])), told
