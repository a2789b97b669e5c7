"""A training by model.fit() for horovod.keras.elastic whose hosts come and go; see horovod_program.py.

New ranks make a step before elastic.run(), and the others make it in a reset callback.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import horovod.keras as hvd
import keras
import numpy as np

folder = Path(sys.argv[2])
rounds = (folder / "rounds").read_text().split()
STEPS = 4
PATIENCE_SECONDS = 30
pace = threading.Event()

hvd.init()
keras.utils.set_random_seed(hvd.rank() + int(os.environ["HOROVOD_RANK"]))
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)), "mse")
data = np.full((STEPS * 4, 2), hvd.rank() + 1.0), np.ones((STEPS * 4, 1))


def step_outside() -> None:
    """Makes a step in new ranks and in the others, as Horovod's example does."""
    model.fit(*data, batch_size=4, steps_per_epoch=1, verbose=0)


step_outside()


class Rounds(keras.callbacks.Callback):
    """Logs each round on rank 0, and waits for the change of hosts that follows."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the round."""
        seen = hvd.allgather_object([v.numpy().tolist() for v in model.trainable_variables])
        assert all(one == seen[0] for one in seen), seen
        assert state.batch == STEPS
        if hvd.rank() != 0:
            return
        entry = {"size": hvd.size(), "pid": os.getpid(), "host": os.environ["HOROVOD_HOSTNAME"]}
        entry |= {"start": int(os.environ["HOROVOD_RANK"]), "entered": state.entered, "round": state.epoch}
        with (folder / "log").open("a") as log:
            log.write(json.dumps(entry) + "\n")
        now, then = (rounds[min(i, len(rounds) - 1)] for i in (state.epoch, state.epoch + 1))
        end = time.monotonic() + PATIENCE_SECONDS
        while now != then and state._host_messages.empty():
            if time.monotonic() > end:
                raise TimeoutError("nobody has announced a change of hosts")
            pace.wait(0.05)


@hvd.elastic.run
def train(state: Any) -> None:
    """Trains until all rounds are over."""
    state.entered += 1
    callbacks = [Rounds(), hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.UpdateBatchStateCallback(state)]
    callbacks.append(hvd.elastic.CommitStateCallback(state, 2))
    model.fit(*data, batch_size=4, epochs=len(rounds) - state.epoch, callbacks=callbacks, verbose=0)


state = hvd.elastic.KerasState(model, batch=0, epoch=0, entered=0)
state.register_reset_callbacks([step_outside])
train(state)
