# ruff: noqa: PT017  (no pytest on the ranks)
"""More of local updates from Keras: optimizer state, accumulation, warm-up, failing ranks, refusals."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np

import sirtaki.keras as hvd
from ranks.keras.keras_cases import BATCH, STEPS, TORCH, data, network, refused, same_weights, share
from ranks.keras.keras_local_cases import Drift, adam, differ, fit, loop_of, same_data, sgd, with_norm
from sirtaki.keras._backend import backend


def case_synchronous_region() -> None:
    """Optimizers become equal on all ranks where gradients are averaged again."""
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(), local_updates=hvd.LocalUpdates(3, optimizer_state=0))
    step = loop_of(model, optimizer, True)
    x, y = (keras.ops.convert_to_tensor(v) for v in same_data(hvd.rank()))
    for _ in range(5):
        step(x[:BATCH], y[:BATCH])
    assert differ(optimizer.variables)
    with optimizer.synchronous():
        assert not differ([*model.trainable_variables, *optimizer.variables])
        for _ in range(3):
            step(x[:BATCH], y[:BATCH])
            assert not differ([*model.trainable_variables, *optimizer.variables])
    parted = False
    for _ in range(60):
        step(x[:BATCH], y[:BATCH])
        parted = differ(model.trainable_variables) or parted
    assert parted
    optimizer.drain()
    assert not differ(model.trainable_variables)


def case_the_optimizers_state_is_averaged() -> None:
    model = network()
    seen: list[bool] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(differ(self.model.optimizer.variables))

    how = hvd.LocalUpdates("fixed:steps=3,delay=0", optimizer_state=1)
    fit(model, hvd.DistributedOptimizer(adam(), local_updates=how), callbacks=[Watch()])
    assert seen == [step % 3 != 0 for step in range(2 * STEPS)], seen


def case_accumulated_gradients_are_one_step() -> None:
    model, drift = network(), Drift()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.05, gradient_accumulation_steps=2), local_updates="fixed:steps=3,delay=0"
    )
    fit(model, optimizer, callbacks=[drift], epochs=3)
    # Every second batch makes a step; the first step is synchronous, and every third step after it is merged.
    applied = [batch // 2 for batch in range(1, 3 * STEPS + 1)]
    assert drift.seen == [steps > 0 and (steps - 1) % 3 != 0 for steps in applied], drift.seen
    assert not differ(model.trainable_variables)


def case_gradients_are_averaged_while_it_warms_up() -> None:
    model, drift = network(), Drift()
    optimizer = hvd.DistributedOptimizer(adam(), local_updates="fixed:steps=4,warmup=6")
    fit(model, optimizer, callbacks=[drift])
    assert drift.seen[:6] == [False] * 6, drift.seen
    assert any(drift.seen[6:]), drift.seen


def case_a_model_that_is_made_in_its_first_step() -> None:
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.layers.Dense(5, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    drift = Drift()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), drift]
    fit(model, hvd.DistributedOptimizer(adam(), local_updates=3), callbacks=callbacks)
    assert any(drift.seen), drift.seen
    assert not differ(model.weights)


def case_a_model_that_is_made_in_its_first_step_begins_with_the_given_rank() -> None:
    seed = 3
    keras.utils.set_random_seed(seed if hvd.rank() == 1 else 5)
    model = keras.Sequential([keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
    still = keras.optimizers.SGD(0.0)
    fit(
        model,
        hvd.DistributedOptimizer(still, local_updates=3),
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(1)],
    )
    keras.utils.set_random_seed(seed)
    expected = keras.Sequential([keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
    fit(expected, keras.optimizers.SGD(0.0), epochs=1)
    same_weights(model, expected, 0.0)


def case_differences_travel_compressed() -> None:
    """LocalUpdates names the codec, or else gradients do; a residual stays on its rank until the next merge."""
    for own, gradients, exact in (
        (None, "none", True),
        ("none", "fp16", True),
        (None, "fp16", False),
        ("int8", "none", False),
    ):
        model, drift = network(), Drift()
        how = hvd.LocalUpdates("fixed:steps=3,delay=0,warmup=0,guard=off", compression=own)
        optimizer = hvd.DistributedOptimizer(adam(), local_updates=how, compression=gradients)
        fit(model, optimizer, callbacks=[drift])
        merged = [differs for step, differs in enumerate(drift.seen) if step > 0 and step % 3 == 0]
        assert any(merged) != exact, (own, gradients, drift.seen)
        assert not differ(model.trainable_variables)


def case_a_rank_that_went_wrong_takes_the_others_model() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(), local_updates="fixed:steps=3,delay=1")
    step = loop_of(model, optimizer, True)
    x, y = same_data(hvd.rank())
    for i in range(4 * STEPS):
        at = slice(i % STEPS * BATCH, (i % STEPS + 1) * BATCH)
        wrong = hvd.rank() == 1 and i == 7
        step(
            keras.ops.convert_to_tensor(x[at]),
            keras.ops.convert_to_tensor(np.full_like(y[at], np.nan) if wrong else y[at]),
        )
    optimizer.drain()
    for variable in (*model.trainable_variables, *optimizer.variables):
        assert np.isfinite(keras.ops.convert_to_numpy(variable)).all(), variable.path
    assert not differ(model.trainable_variables)


def case_saved_models_load_with_the_plain_class() -> None:
    model = network()
    fit(model, hvd.DistributedOptimizer(adam(), local_updates=3))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.keras"))
        model.save(path)
        plain = keras.models.load_model(path)
        assert type(plain.optimizer) is type(adam())
        same_weights(plain, model, 0.0)
        again = hvd.load_model(path, local_updates=3)
        x, y = data()
        again.fit(share(x), share(y), batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
        assert again.optimizer.local_stats()["mode"] == "local"
        assert not differ(again.trainable_variables)


def case_an_interval_that_fails_ends_the_training() -> None:
    def interval(round_: dict[str, Any]) -> int:
        raise KeyError("no such round")

    try:
        fit(network(), hvd.DistributedOptimizer(sgd(), local_updates=interval))
    except Exception as error:
        assert "no such round" in str(error), error
    else:
        raise AssertionError("not raised")


def case_a_function_cannot_make_models_equal() -> None:
    if TORCH:
        return
    import tensorflow as tf

    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(), local_updates=3)
    fit(model, optimizer, epochs=1)
    refused(tf.function(optimizer.drain, autograph=False), NotImplementedError, "outside of tf.function")
    optimizer.drain()
    assert not differ(model.trainable_variables)


def case_memory_that_was_replaced() -> None:
    """A torch parameter whose memory the program replaced is refused; TensorFlow may move variables."""
    if not TORCH:
        return
    import torch

    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(), local_updates=3)
    fit(model, optimizer, epochs=1)
    moved = model.trainable_variables[0]
    moved.value.data = moved.value.data.clone()
    refused(optimizer.drain, RuntimeError, f"the memory of {moved.path} was replaced")
    other = model.trainable_variables[1]
    other._value = torch.nn.Parameter(other.value.detach().clone())
    refused(optimizer.drain, RuntimeError, "was replaced")


def case_buffers_are_named_before_the_first_step() -> None:
    model = with_norm()
    optimizer = hvd.DistributedOptimizer(sgd(), local_updates=3)
    fit(model, optimizer, epochs=1)
    refused(lambda: optimizer.buffers_of(model), RuntimeError, "after the first step")
    optimizer.buffers_of(network())  # no buffers
    known = with_norm()
    fit(
        known,
        hvd.DistributedOptimizer(sgd(), local_updates=3),
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        epochs=1,
    )
    known.optimizer.buffers_of(known)


def case_steps_after_the_end() -> None:
    """A step of an optimizer that is closed or deleted, called from a function that still exists, does no harm."""
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(), local_updates=3)
    step = loop_of(model, optimizer, True)
    x, y = (keras.ops.convert_to_tensor(v[:BATCH]) for v in same_data(hvd.rank()))
    step(x, y)
    training = optimizer._sirtaki.local
    training.close()
    assert not training.starts
    step(x, y)
    gone = hvd.DistributedOptimizer(sgd(), local_updates=3)
    training = gone._sirtaki.local
    del gone
    gc.collect()
    training.after_step(0.1, 1, None, 0)
    assert training.stats() == {}


def case_a_start_that_failed_is_made_anew() -> None:
    optimizer = hvd.DistributedOptimizer(sgd(), local_updates=3)
    model = network()
    optimizer.build(model.trainable_variables)
    made = backend.memory
    calls = []

    def fails_for_the_state(variables: Any) -> Any:
        calls.append(variables)
        if len(calls) == 2:
            raise NotImplementedError("elsewhere")
        return made(variables)

    backend.memory = fails_for_the_state
    try:
        refused(optimizer._sirtaki.local.prepare, NotImplementedError, "elsewhere")
    finally:
        del backend.memory
    fit(model, optimizer, epochs=1)
    assert optimizer.local_stats()["mode"] == "local"
    assert not differ(model.trainable_variables)


def case_what_cannot_be_is_refused() -> None:
    first = hvd.add_process_set([0])

    def distributed(optimizer: Any, **how: Any) -> Any:
        return hvd.DistributedOptimizer(optimizer, local_updates=4, **how)

    for call, part in (
        (lambda: distributed(sgd(), op=hvd.Sum), "op=Average"),
        (lambda: distributed(keras.optimizers.LossScaleOptimizer(sgd())), "LossScaleOptimizer"),
        (lambda: distributed(keras.optimizers.Adam(use_ema=True)), "use_ema"),
        (lambda: distributed(sgd(), process_set=first), "process_set"),
        (lambda: distributed(keras.optimizers.Ftrl()), "Ftrl"),
    ):
        refused(call, NotImplementedError, part)
    refused(lambda: hvd.DistributedOptimizer(sgd(), local_updates="quick"), ValueError, "quick")
    with mock.patch("sirtaki.basics.is_elastic", return_value=True):
        refused(lambda: distributed(sgd()), NotImplementedError, "elastic.min")
    keras.config.set_dtype_policy("mixed_float16")
    try:
        refused(lambda: distributed(sgd()), NotImplementedError, "mixed_bfloat16")
        model = network()
    finally:
        keras.config.set_dtype_policy("float32")
    late = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    refused(lambda: fit(model, distributed(sgd()), callbacks=late), NotImplementedError, "LossScaleOptimizer")
    double = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, dtype="float64")])
    refused(lambda: fit(double, distributed(sgd())), NotImplementedError, "float64")
