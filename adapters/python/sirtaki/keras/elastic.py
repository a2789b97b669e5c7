"""Elastic training with Keras: the state of a model, and callbacks that commit it in model.fit().

The names are those of horovod.keras.elastic; docs/elastic.md shows a program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import keras
import numpy as np

from sirtaki import elastic
from sirtaki.elastic.variables import KerasModelState
from sirtaki.keras._backend import backend

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]

Result = TypeVar("Result")


class KerasState(KerasModelState):
    """State of a Keras model, which must be built, its optimizer and attributes.

    Args:
        model: a Keras model.
        optimizer: a Keras optimizer; None: that of the model. Built here if it is not.
        backend: accepted as in Horovod; not used.
        **attributes: picklable values, which become attributes, such as epoch=0, batch=0.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **attributes: Any) -> None:
        del backend
        super().__init__(model, optimizer, **attributes)

    def _value_of(self, variable: Any) -> Any:
        return np.array(keras.ops.convert_to_numpy(variable))

    def _part_of(self, variable: Any, begin: int, end: int) -> Any:
        return keras.ops.convert_to_numpy(keras.ops.reshape(variable, (-1,))[begin:end])

    def _broadcast(self, variables: list[Any]) -> None:
        backend.broadcast(variables, 0)


class CommitStateCallback(keras.callbacks.Callback):
    """Commits a state in model.fit(). Put it behind callbacks that change the state.

    Args:
        state: the state.
        batches_per_commit: number of batches between two commits; 0: only at the end of an epoch.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to count anew, so that all ranks commit behind the same batches."""
        del logs
        self._batches = 0

    # Not on_train_batch_end(), whose plain form calls this one: a derived class for Horovod has an on_batch_end() too.
    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits, if enough batches have passed."""
        del batch, logs
        self._batches += 1
        if self.batches_per_commit > 0 and self._batches % self.batches_per_commit == 0:
            self.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        del epoch, logs
        self.commit()

    def commit(self) -> None:
        """Calls state.commit(); a derived class may do more."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps the number of batches done of an epoch in state.batch.

    An epoch that begins again after a change of ranks has all of its batches, unless the program gives fit() another
    number.

    Args:
        state: the state, with an attribute `batch`.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the batch."""
        del logs
        self.state.batch = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begins to count anew."""
        del epoch, logs
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps the number of epochs done in state.epoch.

    The epochs of a call of fit() are those behind state.epoch, also if fit() counts them from its initial_epoch.

    Args:
        state: the state, with an attribute `epoch`.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        #: Value of state.epoch at the epoch 0 of fit(), and whether an epoch of this call has begun.
        self._before, self._begun = 0, False

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes where this call of fit() begins."""
        del logs
        # Good also for a derived class for Horovod whose on_epoch_begin() does not call the one below.
        self._before, self._begun = self.state.epoch, False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Takes the number of the first epoch of this call into account."""
        del logs
        if not self._begun:
            self._before, self._begun = self.state.epoch - epoch, True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch."""
        del logs
        self.state.epoch = self._before + epoch + 1


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a function that trains on when ranks are lost, join or leave; see sirtaki.elastic.run().

    Args:
        func: the training function; its first argument is the training's state.
    """
    if keras.backend.backend() == "tensorflow":
        from sirtaki.tensorflow import elastic as of_tensorflow

        return of_tensorflow.run(func)
    return elastic.run(func)
