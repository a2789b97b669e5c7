"""States of elastic jobs from Keras on three ranks: their callbacks, and variables that silently differ."""

from __future__ import annotations

import importlib
import logging
from typing import Any
from unittest import mock

import keras
import numpy as np

import sirtaki
import sirtaki.keras as hvd
from ranks.keras.keras_cases import BATCH, STEPS, data, fit, network, share
from sirtaki import basics
from sirtaki.objects import broadcast_object


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

    class Silent(hvd.elastic.UpdateEpochStateCallback):
        """A class for Horovod, whose callback has no on_epoch_begin()."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            """Does nothing."""

    model.fit(x, y, epochs=2, **{**how, "callbacks": [Silent(state)]})
    assert state.epoch == 7


def case_variables_that_differ_are_healed_by_the_majority() -> None:
    for times, state in enumerate(states(), 1):
        heal_by_majority(state, times)


def states() -> list[Any]:
    """Returns the states of the backend."""
    if keras.backend.backend() != "tensorflow":
        return [hvd.elastic.KerasState]
    return [hvd.elastic.KerasState, importlib.import_module("sirtaki.tensorflow.elastic").TensorFlowKerasState]


def case_variables_go_to_the_ranks_that_lack_them() -> None:
    for make in states():
        model = network()
        optimizer = keras.optimizers.Adam(0.1)
        model.compile(optimizer, "mse")
        state = make(model, step=hvd.rank())
        counted = model.trainable_variables[0], optimizer.iterations
        broadcasts: list[int] = []

        def note(variables: list[Any], send: Any = state._broadcast, broadcasts: list[int] = broadcasts) -> None:
            broadcasts.append(len(variables))
            send(variables)

        with mock.patch("sirtaki.basics.is_elastic", return_value=True), mock.patch.object(state, "_broadcast", note):
            state.sync()
            for victim in range(hvd.size()):
                expected = [keras.ops.convert_to_numpy(variable).copy() for variable in counted]
                if hvd.rank() == victim:
                    for variable in counted:
                        variable.assign(variable + 1)
                expected = broadcast_object([keras.ops.convert_to_numpy(variable) for variable in counted])
                state.sync()
                found = [keras.ops.convert_to_numpy(variable) for variable in counted]
                assert all(map(np.array_equal, found, expected))
        assert broadcasts[1:] == [2, 0, 0], "one rank gets its values from those that have them"
        assert state.step == 0


def heal_by_majority(make: Any, times: int) -> None:
    """Changes bits on two ranks; `times`: number of such trainings, this one included."""
    model = network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    model.compile(optimizer, "mse")
    state = make(model, step=0)
    texts: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        texts.append(record.getMessage())
        return True

    logging.getLogger("sirtaki").addFilter(note)
    with mock.patch("sirtaki.elastic._compared_state.is_elastic", return_value=True), basics.losses_raise():
        state.sync()
        fit(model, optimizer, distributed=True, epochs=1)
        victims = [model.trainable_variables[2], next(v for v in optimizer.variables if v.shape == (5, 1))]
        right = [keras.ops.convert_to_numpy(variable).copy() for variable in victims]
        for rank, (variable, values) in enumerate(zip(victims, right, strict=True)):
            if hvd.rank() == rank:
                variable.assign(np.nextafter(values, np.float32(9)))
        for _ in range(60):
            state.commit()
    logging.getLogger("sirtaki").removeFilter(note)
    for variable, values in zip(victims, right, strict=True):
        assert np.array_equal(keras.ops.convert_to_numpy(variable), values)
    assert len(texts) == (hvd.rank() == 0), texts
    if texts:
        assert "rank 0 differs from ranks 1-2 in model.trainable_variables[2]" in texts[0]
        assert "rank 1 differs from ranks 0, 2 in optimizer.variables[" in texts[0]
    assert sirtaki.metrics()["diverged_tensors"] == 2 * times
    for variable in victims:
        variable.assign(variable * 0)
    state.restore()
    assert np.array_equal(keras.ops.convert_to_numpy(victims[0]), right[0]), "the healed commit"
