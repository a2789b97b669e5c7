"""Keras fit() on several ranks reaches the accuracy of one process, on a part of Fashion-MNIST."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import sirtaki.keras as hvd

FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
SEED, BATCH, IMAGES, TESTS, EPOCHS = 7, 64, 6400, 2000, 2


def load(stem: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(FOLDER / f"{stem}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(16 + count * 784), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(FOLDER / f"{stem}-labels-idx1-ubyte.gz") as file:
        return (images / 255.0).astype(np.float32), np.frombuffer(file.read(8 + count), np.uint8, offset=8)


def accuracy(distributed: bool, **how: Any) -> float:
    """Returns the accuracy of a model trained on this rank's part of each batch, or on the whole of it."""
    keras.utils.set_random_seed(SEED)
    # Default names count the models of a process, and rank 0 makes one more than the others; fixed names are equal.
    hidden, last = keras.layers.Dense(64, "relu", name="hidden"), keras.layers.Dense(10, name="last")
    model = keras.Sequential([keras.layers.Input((784,)), hidden, last], name="model")
    optimizer: Any = keras.optimizers.SGD(0.02, momentum=0.9)
    images, labels = load("train", IMAGES)
    batch, callbacks = BATCH, []
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, **how)
        batch //= hvd.size()
        mine = np.arange(IMAGES).reshape(-1, hvd.size(), batch)[:, hvd.rank()].ravel()
        images, labels = images[mine], labels[mine]
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(images, labels, batch_size=batch, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    tests, answers = load("t10k", TESTS)
    return float(np.mean(np.argmax(model.predict(tests, batch_size=TESTS, verbose=0), axis=1) == answers))


def case_fit_comes_to_the_accuracy_of_one_process() -> None:
    alone = hvd.broadcast_object(accuracy(False) if hvd.rank() == 0 else None, 0)
    together = accuracy(True)
    locally = accuracy(True, local_updates=4)
    print(
        f"seed {SEED}, {hvd.size()} ranks: {alone:.4f} by one process, {together:.4f} together, "
        f"{locally:.4f} with local updates",
        flush=True,
    )
    assert alone > 0.75, alone
    # Both train on the same batches; another order of summation changes a few predictions.
    assert abs(together - alone) < 0.01, (together, alone)
    assert locally > alone - 0.03, (locally, alone)
    told = hvd.allgather_object((together, locally))
    assert told == told[:1] * hvd.size(), told
