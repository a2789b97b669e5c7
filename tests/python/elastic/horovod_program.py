"""A training for horovod.{torch,tensorflow,keras}.elastic whose hosts come and go: the argument names the framework.

In each round, rank 0 appends a line to the log, from which the discovery script takes the hosts of the next round, and
waits for the launcher to announce a change of hosts. The file "fail" makes the ranks of its numbers raise an error.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

kind, folder = sys.argv[1], Path(sys.argv[2])
rounds = (folder / "rounds").read_text().split()
STEPS = 4
PATIENCE_SECONDS = 30
pace = threading.Event()

if kind == "torch":
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, round=0, step=0, entered=0)

    def step() -> None:
        """Makes one step on data of this rank."""
        optimizer.zero_grad()
        model(torch.full((4, 2), hvd.rank() + 1.0)).sum().backward()
        optimizer.step()

    def weights() -> list[Any]:
        """Returns the weights."""
        return [p.tolist() for p in model.parameters()]

else:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    hvd.init()
    keras.utils.set_random_seed(hvd.rank() + int(os.environ["HOROVOD_RANK"]))
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, round=0, step=0, entered=0)

    @tf.function
    def traced(data: tf.Tensor) -> None:
        """Makes one step with two reductions; traced once, whatever the number of ranks."""
        for factor in (1.0, -0.5):
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = factor * tf.reduce_sum(model(data, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            # The next reduction begins behind it, and so behind the end of this one.
            tf.debugging.Assert(tf.reduce_all(tf.math.is_finite(gradients[0])), [gradients[0]])
            optimizer.apply(gradients, model.trainable_variables)

    def step() -> None:
        """Makes one step on data of this rank."""
        traced(tf.fill([4, 2], hvd.rank() + 1.0))

    def weights() -> list[Any]:
        """Returns the weights."""
        return [v.numpy().tolist() for v in model.trainable_variables]


def report(state: Any) -> None:
    """Appends a line to the log."""
    entry = {
        "round": state.round,
        "entered": state.entered,
        "size": hvd.size(),
        "pid": os.getpid(),
        "host": os.environ["HOROVOD_HOSTNAME"],
        "start": int(os.environ["HOROVOD_RANK"]),
    }
    with (folder / "log").open("a") as log:
        log.write(json.dumps(entry) + "\n")


def await_change(state: Any) -> None:
    """Waits for a change of hosts if one follows."""
    now, then = (rounds[min(i, len(rounds) - 1)] for i in (state.round, state.round + 1))
    end = time.monotonic() + PATIENCE_SECONDS
    while now != then and state._host_messages.empty():
        if time.monotonic() > end:
            raise TimeoutError("nobody has announced a change of hosts")
        pace.wait(0.05)


@hvd.elastic.run
def train(state: Any) -> None:
    """Trains until all rounds are over."""
    state.entered += 1
    while state.round < len(rounds):
        failing = folder / f"fail.{state.round}"
        if failing.exists() and os.environ["HOROVOD_RANK"] in failing.read_text().split():
            raise ValueError("this rank shall fail")
        while state.step < STEPS:
            seen = hvd.allgather_object(weights())
            assert all(one == seen[0] for one in seen), seen
            step()
            state.step += 1
            state.commit()
        if hvd.rank() == 0:
            report(state)
            await_change(state)
        state.round += 1
        state.step = 0
        state.commit()


train(state)
