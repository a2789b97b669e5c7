"""Classes for Lightning, whose two packages, lightning and pytorch_lightning, have bases of their own.

They call accelerate() when the strategy has wrapped the model and made the optimizers, and drain() or
prepare_checkpoint() before the Trainer reads the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from sirtaki._telemetry.selection import PREFIX, USUAL, MetricSelection
from sirtaki.errors import UnsupportedError, require
from sirtaki.local_updates import LocalChoice
from sirtaki.torch._optimizer_class import own_methods
from sirtaki.torch.compression import Choice
from sirtaki.torch.ddp import Acceleration, accelerate

_HOOK = (
    "Sirtaki registers the communication hook of the model itself, and DistributedDataParallel takes one: leave out "
    "ddp_comm_hook, ddp_comm_state and model_averaging_period of the strategy"
)
_TWICE = "the strategy is a SirtakiStrategy, or has a SirtakiCallback already: leave out one of them"


class StrategyMarker:
    """Base of all classes with StrategyMethods."""

    __slots__ = ()  # an object of DDPStrategy keeps its layout when it gets the methods


def _plain(strategy: Any) -> Any:
    """Returns super() of the class that has the methods; a class of the program may be derived from that one."""
    made = next(c for c in type(strategy).__mro__ if StrategyMarker in c.__bases__)
    return super(made, strategy)


class StrategyMethods:
    """Methods that subclasses of DDPStrategy get."""

    #: Arguments of accelerate().
    sirtaki_choices: dict[str, Any]
    #: Handle of the model, from the first fit() on; see sirtaki.torch.ddp.
    acceleration: Acceleration | None = None

    def setup(self: Any, trainer: Any) -> None:
        """Wraps the model, makes the optimizers and accelerates both. Collective."""
        given = (getattr(self, name, None) for name in ("_ddp_comm_hook", "_ddp_comm_state", "_model_averaging_period"))
        require(all(one is None for one in given), _HOOK)
        _plain(self).setup(trainer)
        if trainer.state.fn == "fit":
            # Lightning drops the wrapper after fit(), and the report at the end has the codecs while it exists.
            self.sirtaki_wrapper = self.model
            self.acceleration = accelerate(self.model, self.optimizers, **self.sirtaki_choices)

    def optimizer_step(self: Any, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """Makes a step; the closure of Lightning has the forward and the backward pass."""
        has_scaler = getattr(self.precision_plugin, "scaler", None) is not None
        if getattr(optimizer, "_sirtaki_local", None) is None or has_scaler:
            return _plain(self).optimizer_step(optimizer, closure, model, **kwargs)
        # Local updates take no closure. Its hooks and its clipping belong to it.
        result = self.precision_plugin._wrap_closure(model or self.lightning_module, optimizer, closure)
        optimizer.step(**kwargs)
        return result

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Makes the forward pass, and with manual optimization the steps."""
        try:
            return _plain(self).training_step(*args, **kwargs)
        finally:
            # With manual optimization Lightning switches the reducer of DistributedDataParallel on after each pass.
            if self.acceleration is not None:
                self.acceleration.keep_reducer_off()

    def lightning_module_state_dict(self: Any) -> dict[str, Any]:
        """Returns the model for a checkpoint, equal on all ranks. Collective."""
        if self.acceleration is not None:
            self.acceleration.prepare_checkpoint()
        return _plain(self).lightning_module_state_dict()

    def on_validation_start(self: Any) -> None:
        """Makes the models of all ranks equal. Collective."""
        _plain(self).on_validation_start()
        if self.acceleration is not None:
            self.acceleration.drain()

    def on_train_end(self: Any) -> None:
        """Makes the models of all ranks equal, and keeps the residuals for a checkpoint after the end. Collective."""
        _plain(self).on_train_end()
        if self.acceleration is not None:
            self.acceleration.prepare_checkpoint()


_METHODS = own_methods(StrategyMethods)


def _extend(strategy: Any, base: type, choices: dict[str, Any], owner: object) -> None:
    """Gives a DDPStrategy the methods, in place. Again by the same callback: does nothing."""
    if isinstance(strategy, StrategyMarker):
        require(vars(strategy).get("sirtaki_owner") is owner, _TWICE)
        return
    if not isinstance(strategy, base):
        raise UnsupportedError(
            f"SirtakiCallback extends the DDPStrategy of {base.__module__.partition('.')[0]}, and the strategy is a "
            f"{type(strategy).__module__}.{type(strategy).__name__}: give the Trainer strategy='ddp' and devices=, and "
            "import SirtakiCallback from sirtaki.lightning for `lightning`, from sirtaki.pytorch_lightning for "
            "`pytorch_lightning`"
        )
    plain: Any = type(strategy)
    looks = {"__doc__": plain.__doc__, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    strategy.__class__ = type(plain.__name__, (plain, StrategyMarker), {**_METHODS, **looks})
    vars(strategy).update(sirtaki_choices=choices, sirtaki_owner=owner)


def make_classes(library: Any) -> SimpleNamespace:
    """Returns SirtakiStrategy, SirtakiCallback and SirtakiMetrics for lightning.pytorch or pytorch_lightning."""
    base = library.strategies.DDPStrategy

    class SirtakiStrategy(base, StrategyMarker):  # type: ignore[misc,valid-type]
        """A DDPStrategy with the compression, plans and local updates of Sirtaki.

        Args:
            compression: a choice of sirtaki.torch.ddp.accelerate().
            local_updates: the same.
            kwargs: those of DDPStrategy, without a communication hook. process_group_backend is that of everything
                but gradients.
        """

        strategy_name = "sirtaki"

        def __init__(
            self, *, compression: Choice | None = None, local_updates: LocalChoice = None, **kwargs: Any
        ) -> None:
            _plain(self).__init__(**kwargs)
            self.sirtaki_choices = {"compression": compression, "local_updates": local_updates}

    class SirtakiCallback(library.Callback):
        """Gives the DDPStrategy of a Trainer the compression, plans and local updates of Sirtaki.

        Args:
            compression: a choice of sirtaki.torch.ddp.accelerate().
            local_updates: the same.
        """

        def __init__(self, compression: Choice | None = None, local_updates: LocalChoice = None) -> None:
            self._choices = {"compression": compression, "local_updates": local_updates}

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """Extends the strategy before it wraps the model."""
            del pl_module
            if stage == "fit":
                _extend(trainer.strategy, base, self._choices, self)

    class SirtakiMetrics(library.Callback):
        """Gives numbers of sirtaki.metrics() of rank 0 to the loggers of the Trainer, every log_every_n_steps.

        Args:
            names: metrics to report, or None for all; see docs/metrics.md.
            prefix: begins each name.
        """

        def __init__(self, names: Sequence[str] | None = USUAL, prefix: str = PREFIX) -> None:
            self._selection = MetricSelection(names, prefix)
            self._logged_at = 0

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            """Logs at the steps at which Lightning logs."""
            del args
            step = trainer.global_step
            due = step > 0 and step % trainer.log_every_n_steps == 0 and step != self._logged_at
            if not (due and trainer.is_global_zero):
                return
            self._logged_at = step
            numbers = self._selection.read()
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=step)

    for name, method in _METHODS.items():
        setattr(SirtakiStrategy, name, method)
    for made in (SirtakiStrategy, SirtakiCallback, SirtakiMetrics):
        made.__module__ = f"sirtaki.{library.__name__.partition('.')[0]}"
        made.__qualname__ = made.__name__
    library.strategies.StrategyRegistry.register(
        "sirtaki", SirtakiStrategy, description="DDPStrategy with Sirtaki", override=True
    )
    return SimpleNamespace(strategy=SirtakiStrategy, callback=SirtakiCallback, metrics=SirtakiMetrics)
