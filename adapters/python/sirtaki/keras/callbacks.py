# ruff: noqa: PLR0917  (Horovod's arguments)
"""Callbacks for model.fit() on several ranks. All ranks pass the same ones in the same order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from sirtaki import basics
from sirtaki._numpy import numpy_ops
from sirtaki._rank_local_variables import RankLocalVariables
from sirtaki._telemetry.selection import PREFIX, USUAL, MetricSelection
from sirtaki.errors import require
from sirtaki.keras._backend import backend
from sirtaki.keras.optimizer import is_distributed, move_outside_loss_scale, set_initial_rank
from sirtaki.ops import ReduceOp, check_root

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "MetricsCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Broadcasts the model and the state of the optimizer from `root_rank` at the start. Put it first.

    It also prepares a compiled model for several ranks: no XLA, loss scaling outside of the reduction and, with local
    updates, equal models before validation and at the end of an epoch, which later callbacks may save.

    Args:
        root_rank: the rank whose values all ranks get.
        device: accepted as in Horovod; not used.
        local_variables: variables of the model that differ between ranks; they are not broadcast.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        del device
        self._root_rank = root_rank
        self._done = False
        self._own = RankLocalVariables()
        for variable in local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Excludes the variable `var` of the model from the broadcast. All ranks register the same variables."""
        self._own.add(var)

    def set_model(self, model: Any) -> None:
        """Prepares the compiled model."""
        super().set_model(model)
        if getattr(model, "optimizer", None) is not None:
            move_outside_loss_scale(model.optimizer)
            if is_distributed(model.optimizer):
                model.optimizer.buffers_of(model)
        if getattr(model, "jit_compile", False):
            model.jit_compile = False
            model.train_function = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts before the first batch, if all variables exist."""
        del logs
        check_root(self._root_rank, "broadcast")
        self._done = False
        if is_distributed(self.model.optimizer):
            set_initial_rank(self.model.optimizer, self._root_rank)
        if self.model.built and self.model.optimizer.built:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first batch, if that has made the variables."""
        del batch, logs
        if not self._done:
            self._broadcast()

    def on_test_begin(self, logs: Any = None) -> None:
        """Drains local updates; collective."""
        del logs
        self._drain()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Drains local updates; collective."""
        del epoch, logs
        self._drain()

    def _drain(self) -> None:
        if is_distributed(getattr(self.model, "optimizer", None)):
            self.model.optimizer.drain()

    def _broadcast(self) -> None:
        self._done = True
        shared = [variable for variable in self.model.variables if variable not in self._own]
        variables = [*shared, *self.model.optimizer.variables]
        known: dict[int, Any] = {id(variable): variable for variable in variables}
        backend.broadcast(list(known.values()), self._root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces the metrics of an epoch by their mean over all ranks.

    Put it before callbacks that read metrics: ReduceLROnPlateau, EarlyStopping, checkpoints.

    Args:
        device: accepted as in Horovod; not used.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        del device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages the metrics; collective."""
        del epoch
        if not logs or basics.size() == 1:
            return
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        own = np.array([float(logs[name]) for name in names], np.float64)
        work = numpy_ops.allreduce(own, "keras.metrics", ReduceOp.AVERAGE, (1.0, 1.0), in_place=False)
        for name, value in zip(names, numpy_ops.start_one(work).wait().tolist(), strict=True):
            logs[name] = value


class MetricsCallback(keras.callbacks.Callback):
    """Adds numbers of sirtaki.metrics() of this rank to those of an epoch, for TensorBoard, CSVLogger, W&B and others.

    Put it after MetricAverageCallback and before callbacks that log. Not collective.

    Args:
        names: metrics to add, or None for all; the progress bar of Keras shows them, too. "codec.int8.tensors" is that
            of one codec, and "codec.{codec}.tensors" stands for those of all.
        prefix: begins each name.
    """

    def __init__(self, names: Sequence[str] | None = USUAL, prefix: str = PREFIX) -> None:
        super().__init__()
        self._selection = MetricSelection(names, prefix)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the metrics."""
        del epoch
        if logs is None:
            return
        logs.update(self._selection.read())


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr` times a factor in some epochs.

    Args:
        initial_lr: learning rate for a factor of 1.
        multiplier: a number, or a function of the epoch (a fraction within an epoch unless `staircase`).
        start_epoch: first epoch with this schedule.
        end_epoch: first epoch after it; None: to the end.
        staircase: changes the rate only at the beginning of an epoch. A number as multiplier implies it.
        momentum_correction: scales the momentum of SGD with a changed rate, so that steps do not jump.
        steps_per_epoch: batches of an epoch, if Keras does not know them.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        require(isinstance(initial_lr, (int, float)), f"initial_lr is {initial_lr!r}; it must be a number")
        self._initial = float(initial_lr)
        self._factor = multiplier if callable(multiplier) else lambda epoch: float(multiplier)
        self._staircase = staircase or not callable(multiplier)
        self._first, self._end = start_epoch, end_epoch
        self._corrects = momentum_correction
        self._steps = steps_per_epoch
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Sets the learning rate of an epoch."""
        del logs
        self._epoch = epoch
        if self._acts() and self._staircase:
            self._set(float(epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate of a batch."""
        del logs
        if self._acts() and not self._staircase:
            steps: Any = self._steps or (self.params or {}).get("steps")
            require(bool(steps), "steps_per_epoch is not known; give it to the callback")
            self._set(self._epoch + batch / float(steps))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the learning rate to the logs."""
        del epoch
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _acts(self) -> bool:
        return self._epoch >= self._first and (self._end is None or self._epoch < self._end)

    def _set(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = float(optimizer.learning_rate), self._initial * self._factor(epoch)
        optimizer.learning_rate = new
        plain = getattr(optimizer, "inner_optimizer", optimizer)
        if self._corrects and isinstance(plain, keras.optimizers.SGD) and plain.momentum and old > 0 and new != old:
            # The momentum of Keras holds steps, which include the learning rate.
            for velocity in getattr(plain, "momentums", []):
                if velocity is not None:
                    velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from initial_lr / size() to `initial_lr` over the first epochs (Goyal et al., 2017).

    Args:
        initial_lr: the final rate, already scaled for all ranks.
        warmup_epochs: number of epochs of the warm-up.
        momentum_correction: see LearningRateScheduleCallback.
        steps_per_epoch: see LearningRateScheduleCallback.
        verbose: above 0, rank 0 prints the end of the warm-up.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        require(warmup_epochs > 0, f"warmup_epochs is {warmup_epochs!r}; it must be above 0")
        size = basics.size()

        def factor(epoch: float) -> float:
            # Counted at the end of a batch, so that the last batch of the warm-up reaches the rate.
            done = epoch + (1.0 / self._steps if self._steps else 0.0)
            return 1.0 / size * (min(done, warmup_epochs) * (size - 1) / warmup_epochs + 1)

        super().__init__(initial_lr, factor, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self._verbose = verbose

    def on_train_begin(self, logs: Any = None) -> None:
        """Reads the number of batches in an epoch."""
        del logs
        self._steps: Any = self._steps or (self.params or {}).get("steps")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints the end of the warm-up."""
        super().on_epoch_end(epoch, logs)
        if self._end is not None and epoch == self._end - 1 and self._verbose > 0 and basics.rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"Epoch {epoch + 1}: the learning rate is warm: {rate:g}", file=sys.stdout)


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """A ModelCheckpoint of the best model, written by rank 0 alone. Put it after MetricAverageCallback.

    Args:
        filepath: see ModelCheckpoint.
        monitor: see ModelCheckpoint.
        verbose: see ModelCheckpoint, on rank 0.
        save_weights_only: see ModelCheckpoint.
        mode: see ModelCheckpoint.
        save_freq: see ModelCheckpoint.
    """

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        first = basics.rank() == 0
        super().__init__(
            filepath,
            monitor=monitor,
            verbose=verbose if first else 0,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self._writes = first

    def _save_model(self, *arguments: Any, **named: Any) -> None:
        if self._writes:
            super()._save_model(*arguments, **named)
