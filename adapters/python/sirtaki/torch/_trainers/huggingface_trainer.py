"""SirtakiCallback and add_metrics() for the Trainer of Transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sirtaki._telemetry.selection import PREFIX, USUAL, MetricSelection
from sirtaki.errors import UnsupportedError, require
from sirtaki.local_updates import LocalChoice
from sirtaki.torch._ddp.loaded_states import loaded_states
from sirtaki.torch._live_objects import live_objects
from sirtaki.torch._trainers.library import import_library
from sirtaki.torch.compression import Choice
from sirtaki.torch.ddp import Acceleration, accelerate

transformers = import_library("transformers", "transformers", 5, "sirtaki.huggingface")

_SEVERAL = (
    "several DistributedDataParallel models have this one inside, so SirtakiCallback cannot tell which one the Trainer "
    "uses: give each Trainer a model of its own, or drop the earlier Trainer"
)
_NO_WRAPPER = (
    "the Trainer has wrapped its model with no DistributedDataParallel, which SirtakiCallback accelerates: start one "
    "process a device (torchrun or accelerate launch), and leave out FSDP and DeepSpeed"
)


class SirtakiCallback(transformers.TrainerCallback):  # type: ignore[name-defined]
    """Gives the model of a Trainer the compression, plans and local updates of Sirtaki.

    Make it before train(), and put it behind callbacks that ask for evaluations and checkpoints. The checkpoints of
    the Trainer hold the residuals of all ranks and local updates.

    Args:
        compression: a choice of sirtaki.torch.ddp.accelerate().
        local_updates: the same.
    """

    def __init__(self, compression: Choice | None = None, local_updates: LocalChoice = None) -> None:
        self._choices: dict[str, Any] = {"compression": compression, "local_updates": local_updates}
        self._accelerated: tuple[Any, Any] | None = None  # wrapper and optimizer
        self._equal_at = -1  # step after which the models of all ranks are equal
        #: Handle of the model, from the beginning of the training on; see sirtaki.torch.ddp.
        self.acceleration: Acceleration | None = None
        loaded_states.watch()  # the Trainer loads a checkpoint before on_train_begin()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Accelerates the model. Collective."""
        del state, control
        if args.world_size == 1:
            return
        wrapper = _wrapper_of(kwargs["model"])
        optimizer = kwargs["optimizer"]
        optimizer = getattr(optimizer, "optimizer", optimizer)
        if self._accelerated is not None and self._accelerated[0] is wrapper and self._accelerated[1] is optimizer:
            return  # train() again
        self.acceleration = accelerate(wrapper, optimizer, **self._choices)
        self._accelerated = (wrapper, optimizer)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Makes the models of all ranks equal before an evaluation, a checkpoint and the end. Collective."""
        ends = control.should_training_stop or state.global_step >= state.max_steps
        self._before_reading(args, state, control, ends)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Does the same as on_step_end()."""
        self._before_reading(args, state, control, control.should_training_stop)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Makes the models of all ranks equal unless they are. Collective."""
        self._before_reading(args, state, control, self._equal_at != state.global_step)

    def _before_reading(self, args: Any, state: Any, control: Any, ends: bool) -> None:
        if self.acceleration is None:
            return
        # With the best model, the evaluation decides about a checkpoint.
        saves = control.should_save or (control.should_evaluate and args.save_strategy == "best")
        if saves:
            self.acceleration.prepare_checkpoint()
        elif control.should_evaluate or ends:
            self.acceleration.drain()
        if saves or control.should_evaluate or ends:
            self._equal_at = state.global_step


def _wrapper_of(model: nn.Module) -> nn.Module:
    """Returns the DistributedDataParallel that has `model` inside; the Trainer gives callbacks the model alone."""
    if isinstance(model, DistributedDataParallel):
        return model
    plain = getattr(model, "_orig_mod", model)
    every = live_objects(DistributedDataParallel)
    inside = [one for one in every if getattr(one.module, "_orig_mod", one.module) is plain]
    if not inside:
        raise UnsupportedError(_NO_WRAPPER)
    require(len(inside) == 1, _SEVERAL)
    return inside[0]


class _Metrics(transformers.TrainerCallback):  # type: ignore[name-defined]
    def __init__(self, names: Sequence[str] | None, prefix: str) -> None:
        self._selection = MetricSelection(names, prefix)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Adds the numbers to the logs of a step, and not to those of an evaluation or of the end."""
        del args, control, kwargs
        if logs is not None and "loss" in logs and state.is_world_process_zero:
            logs.update(self._selection.read())


def add_metrics(trainer: Any, names: Sequence[str] | None = USUAL, prefix: str = PREFIX) -> None:
    """Adds numbers of sirtaki.metrics() of rank 0 to what a Trainer logs, for TensorBoard, W&B and others.

    Args:
        trainer: a transformers.Trainer.
        names: metrics to add, or None for all; see docs/metrics.md.
        prefix: begins each name.
    """
    # A callback sees the additions of those before it, and loggers come first unless told otherwise.
    trainer.callback_handler.callbacks.insert(0, _Metrics(names, prefix))
