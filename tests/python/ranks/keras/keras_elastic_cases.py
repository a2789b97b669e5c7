"""States of elastic jobs from Keras on three ranks: their callbacks."""

from __future__ import annotations

from typing import Any

import keras

import sirtaki.keras as hvd
from ranks.keras.keras_cases import BATCH, STEPS, data, fit, network, share


class Committed:
    """A state that notes its commits."""

    epoch = batch = 0

    def __init__(self) -> None:
        self.commits: list[tuple[int, int]] = []

    def commit(self) -> None:
        """Notes where the training is."""
        self.commits.append((self.epoch, self.batch))


def case_callbacks_count_in_each_call_of_fit() -> None:
    state = Committed()
    seen: list[int] = []

    class Own(hvd.elastic.CommitStateCallback):
        """A class as programs for Horovod derive it."""

        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            """Notes the batch, too."""
            seen.append(batch)
            super().on_batch_end(batch, logs)

    counters = [hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.UpdateBatchStateCallback(state)]
    callbacks = [*counters, Own(state, batches_per_commit=4)]
    model = network()
    fit(model, keras.optimizers.SGD(0.0), distributed=True, epochs=2, callbacks=callbacks)
    assert state.commits == [(0, 4), (1, 0), (1, 2), (1, STEPS), (2, 0)]
    assert seen == [*range(STEPS)] * 2
    how: Any = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": callbacks}
    x, y = (share(part) for part in data())
    model.fit(x, y, epochs=1, **how)
    assert state.epoch == 3
    model.fit(x, y, initial_epoch=state.epoch, epochs=5, **how)
    assert (state.epoch, state.batch) == (5, 0), "fit() has counted from state.epoch"
