"""Trains a small CNN on Fashion-MNIST with Keras, compressed gradients and local updates: a script to copy.

sirtakirun -np 4 python examples/keras_fashion_mnist.py --local-updates auto
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

import sirtaki
import sirtaki.keras as hvd

FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))


def load(stem: str) -> tuple[np.ndarray, np.ndarray]:
    files = (FOLDER / f"{stem}-{part}-ubyte.gz" for part in ("images-idx3", "labels-idx1"))
    images, labels = (np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8) for file in files)
    return images[16:].reshape(-1, 28, 28, 1) / np.float32(255), labels[8:]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with Keras and compression")
    parser.add_argument("--compression", default="auto", help="how gradients travel; none: as they are")
    parser.add_argument("--local-updates", default="1", help="steps between merges of the models, or a policy; 1: none")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    hvd.init()  # 1. meet the other ranks
    images, labels = (values[hvd.rank() :: hvd.size()] for values in load("train"))  # 2. each rank takes its part

    convolutions = [keras.layers.Conv2D(filters, 3, activation="relu") for filters in (16, 32)]
    layers = [layer for one in convolutions for layer in (one, keras.layers.MaxPooling2D())]
    dense = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.layers.Input((28, 28, 1)), *layers, keras.layers.Flatten(), *dense])
    settings = {"compression": args.compression, "local_updates": args.local_updates}
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001), **settings)  # 3. average the gradients
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]  # 4. start from the same weights
    model.fit(images, labels, 64, steps_per_epoch=args.steps, callbacks=callbacks, verbose=0)
    correct = model.evaluate(*(values[hvd.rank() :: hvd.size()] for values in load("t10k")), 500, verbose=0)[1]
    accuracy, seconds = hvd.allreduce(correct), sirtaki.metrics()["step_seconds"]
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.2%} on {hvd.size()} ranks, steps of {seconds:.3f} s")


if __name__ == "__main__":
    main()
