"""Trains a small CNN on Fashion-MNIST with Keras and data parallelism: a script to copy.

sirtakirun -np 4 python examples/keras_fashion_mnist.py
KERAS_BACKEND=torch sirtakirun -np 4 python examples/keras_fashion_mnist.py

The numbered comments mark all differences from a script for one process.
"""

from __future__ import annotations

import argparse
import gzip
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import sirtaki.keras as hvd

#: Debian's package dataset-fashion-mnist puts the files here.
FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))


def load(stem: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns images and labels of "train" or "t10k"; noisy pictures of ten patterns if the files are missing."""
    if not FOLDER.exists():
        labels = np.arange(10_000) % 10
        patterns = np.random.default_rng(0).random((10, 28, 28, 1)).round()
        noise = np.random.default_rng(len(stem)).random((10_000, 28, 28, 1))
        return ((patterns[labels] + noise) / 2).astype(np.float32), labels.astype(np.uint8)
    with gzip.open(FOLDER / f"{stem}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28, 1)
    with gzip.open(FOLDER / f"{stem}-labels-idx1-ubyte.gz") as file:
        return (images / 255.0).astype(np.float32), np.frombuffer(file.read(), np.uint8, offset=8)


def network() -> keras.Model:
    return keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with Keras on several ranks")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.001, help="learning rate for one rank")
    parser.add_argument("--images", type=int, default=0, help="train with so many images; 0: all")
    parser.add_argument("--compression", default=hvd.Compression.none, help="how gradients travel")
    args = parser.parse_args()

    hvd.init()  # 1. meet the other ranks
    images, labels = load("train")
    share = slice(hvd.rank(), args.images or None, hvd.size())  # 2. each rank takes its part
    images, labels = images[share], labels[share]
    steps = len(images) // args.batch_size * args.batch_size

    model = network()
    optimizer = keras.optimizers.Adam(args.lr * hvd.size() ** 0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=args.compression)  # 3. average the gradients
    model.compile(
        optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # 4. start from the same weights
        hvd.callbacks.MetricAverageCallback(),
    ]
    model.fit(
        images[:steps],
        labels[:steps],
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    test_images, test_labels = load("t10k")
    own = slice(hvd.rank(), None, hvd.size())
    _, accuracy = model.evaluate(test_images[own], test_labels[own], batch_size=500, verbose=0)
    accuracy = float(hvd.allreduce(accuracy))
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.2%} on {hvd.size()} ranks")
    hvd.shutdown()


if __name__ == "__main__":
    main()
