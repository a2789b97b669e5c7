# ruff: noqa: PT017  (no pytest on the ranks)
"""Keras on several ranks against Keras alone, which every rank can run itself. KERAS_BACKEND selects the back end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import sirtaki.keras as hvd

TORCH = keras.backend.backend() == "torch"
BATCH, STEPS = 4, 6


def data() -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and targets of all ranks, batch after batch."""
    random = np.random.default_rng(7)
    x = random.normal(size=(STEPS * hvd.size() * BATCH, 3)).astype(np.float32)
    return x, (x @ [[1.0], [-2.0], [0.5]] + 0.1).astype(np.float32)


def share(values: np.ndarray) -> np.ndarray:
    """Returns the part of every batch that belongs to this rank."""
    return values.reshape(STEPS, hvd.size(), BATCH, -1)[:, hvd.rank()].reshape(STEPS * BATCH, -1)


def network(seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])


def fit(model: Any, optimizer: Any, *, distributed: bool, callbacks: Any = (), epochs: int = 2, **how: Any) -> Any:
    """Trains on the data of this rank, or alone on the data of all ranks."""
    x, y = data()
    model.compile(optimizer, loss="mse", **how)
    batch = BATCH if distributed else BATCH * hvd.size()
    if distributed:
        x, y = share(x), share(y)
    return model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))


def same_weights(one: Any, other: Any, tolerance: float = 1e-5) -> None:
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        assert np.allclose(a, b, atol=tolerance), (a, b)


def against_one_process(make: Callable[[], Any], tolerance: float = 1e-5, **how: Any) -> None:
    """Several ranks make the same steps as one process that has all their batches."""
    alone, together = network(), network()
    fit(alone, make(), distributed=False, **how)
    fit(together, hvd.DistributedOptimizer(make()), distributed=True, **how)
    same_weights(alone, together, tolerance)


def refused(call: Callable[[], Any], kind: type[BaseException], part: str) -> None:
    try:
        call()
    except kind as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"not refused: {part}")


def case_fit_makes_the_steps_of_one_process() -> None:
    against_one_process(lambda: keras.optimizers.SGD(0.1, momentum=0.9))
    against_one_process(lambda: keras.optimizers.Adam(0.01), 1e-4)


def case_fit_in_eager_code_and_with_several_steps_an_execution() -> None:
    against_one_process(lambda: keras.optimizers.SGD(0.1), run_eagerly=True)
    if not TORCH:
        against_one_process(lambda: keras.optimizers.SGD(0.1), steps_per_execution=3)


def case_accumulated_gradients_are_combined_at_the_end() -> None:
    against_one_process(lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    alone, together = network(), network()
    fit(alone, keras.optimizers.SGD(0.2, gradient_accumulation_steps=2), distributed=False)
    summed = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    fit(together, summed, distributed=True)
    same_weights(alone, together)


def case_metrics_are_averaged() -> None:
    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["own"] = float(hvd.rank())

    callbacks = [Own(), hvd.callbacks.MetricAverageCallback()]
    history = fit(network(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), distributed=True, callbacks=callbacks)
    assert history.history["own"] == [(hvd.size() - 1) / 2] * 2
    gathered = hvd.allgather(np.array([history.history["loss"]]))
    assert np.array_equal(gathered, np.broadcast_to(gathered[:1], gathered.shape))
