"""A custom training loop in TensorFlow that averages gradients over all ranks.

sirtakirun -np 4 python examples/tensorflow_loop.py

Fits a small network to a function of two variables.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import sirtaki.tensorflow as hvd


def wanted(points: tf.Tensor) -> tf.Tensor:
    return tf.sin(3 * points[:, :1]) * points[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description="A network for a function of two variables")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    hvd.init()  # 1. meet the other ranks
    tf.random.set_seed(1 + hvd.rank())
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, "tanh"), tf.keras.layers.Dense(1)])
    model.build((None, 2))
    optimizer = tf.keras.optimizers.Adam(0.003 * hvd.size())
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables + optimizer.variables, root_rank=0)  # 2. start from the same weights

    @tf.function
    def train_step() -> tf.Tensor:
        points = tf.random.uniform([64, 2], -1, 1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(points) - wanted(points)) ** 2)
        tape = hvd.DistributedGradientTape(tape)  # 3. average the gradients of all ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for step in range(1, args.steps + 1):
        loss = train_step()
        if step % 100 == 0 or step == args.steps:
            mean = hvd.allreduce(loss, name="loss")
            if hvd.rank() == 0:
                print(f"step {step}: loss {float(mean):.4f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
