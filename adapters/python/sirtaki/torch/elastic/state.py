"""TorchState: models, optimizers, schedulers and samplers in an elastic state, each with a handler.

A handler saves its object in memory, restores it, and makes it that of rank 0 on all ranks, or the mean of the ranks
for models that local updates have made different. Values without a handler are attributes, as in ObjectState.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from sirtaki import errors
from sirtaki.basics import rank
from sirtaki.elastic._compared_state import ComparedState
from sirtaki.elastic._layout import Layout, Part, part_of
from sirtaki.elastic.state import require_same_names
from sirtaki.torch import functions
from sirtaki.torch._optimizer.elastic_models import begin_sync, end_sync, sync_model, sync_optimizer
from sirtaki.torch._optimizer.local_sgd import KEY as LOCAL_KEY
from sirtaki.torch._optimizer.local_sgd import shared_part
from sirtaki.torch._optimizer.residuals import KEY
from sirtaki.torch.elastic._comparison import comparison_of
from sirtaki.torch.elastic._tensors import gpus_of, reduce_tensor
from sirtaki.torch.elastic._transfer import Transfer
from sirtaki.torch.elastic.sampler import ElasticSampler
from sirtaki.torch.functions import broadcast_object


class StateHandler:
    """Handles one object of a TorchState; derived classes define save(), restore() and sync().

    Args:
        value: the object.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Copies the state of the object."""
        raise NotImplementedError

    def restore(self) -> None:
        """Gives the object the state saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives the object the state of rank 0. Collective. TorchState saves it when all objects have theirs."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Handles another object, `value`, from now on."""
        self.value = value
        self.save()

    def _layout(self) -> Layout:
        """Returns the parts of the object that sync() needs to be the same on all ranks. Not collective."""
        return {}

    def _hand_over(self) -> Any:
        """Returns the state saved last, which later calls of save() leave as it is."""
        raise NotImplementedError

    def _take_over(self, saved: Any) -> None:
        """Gives the object a result of _hand_over() in another process. Not collective."""
        raise NotImplementedError

    def _forget_loaded(self) -> None:
        """Drops what only this rank has of a checkpoint, before rank 0 takes a snapshot and sync() follows."""


class StateDictHandler(StateHandler):
    """Handles an object by its state_dict() and load_state_dict()."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._saved = snapshot(self._state())
        self._is_handed_over = False

    def save(self) -> None:
        """Copies the state of the object."""
        self._saved = snapshot(self._state(), None if self._is_handed_over else self._saved)
        self._is_handed_over = False

    def restore(self) -> None:
        """Gives the object the state saved last."""
        self.value.load_state_dict(snapshot(self._saved))

    def sync(self) -> None:
        """Gives the object the state of rank 0. Collective."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))

    def _hand_over(self) -> Any:
        self._is_handed_over = True
        for gpu in gpus_of(self._saved):
            torch.cuda.current_stream(gpu).synchronize()  # another thread reads the copy
        return self._saved

    def _take_over(self, saved: Any) -> None:
        self.value.load_state_dict(saved)

    def _state(self) -> Any:
        return self.value.state_dict()


class ModelStateHandler(StateDictHandler):
    """Handles a model: parameters and buffers."""

    def restore(self) -> None:
        """Gives the model the state saved last."""
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        """Gives the model the values of rank 0, or where local updates make it differ, the mean. Collective."""
        sync_model(self.value, Transfer())

    def _layout(self) -> Layout:
        values = self.value.state_dict().items()
        return {name: part_of("tensor", value) for name, value in values if isinstance(value, Tensor)}


class OptimizerStateHandler(StateDictHandler):
    """Handles an optimizer, distributed or not. Residuals of compressed gradients stay those of each rank."""

    def restore(self) -> None:
        """Gives the optimizer the state saved last, and clears gradients: those of a step that failed are void."""
        super().restore()
        for group in self.value.param_groups:
            for param in group["params"]:
                param.grad = None

    def sync(self) -> None:
        """Gives the optimizer the state and options of rank 0, or of a rank whose model counts. Collective."""
        sync_optimizer(self.value, Transfer())

    def _layout(self) -> Layout:
        # Not its state, which a new rank does not have.
        return {
            f"param_groups[{number}][{i}]": part_of("tensor", param)
            for number, group in enumerate(self.value.param_groups)
            for i, param in enumerate(group["params"])
        }

    def _hand_over(self) -> Any:
        # Additions of Sirtaki are those of one rank, except for the age of a training.
        saved = {key: value for key, value in super()._hand_over().items() if key != KEY}
        return {**saved, LOCAL_KEY: shared_part(saved[LOCAL_KEY])} if LOCAL_KEY in saved else saved

    def _forget_loaded(self) -> None:
        getattr(self.value, "_sirtaki_forget_loaded", lambda: None)()

    def _state(self) -> Any:
        # Merges of local updates may be in flight, where state_dict() is refused.
        return getattr(self.value, "_sirtaki_commit", self.value.state_dict)()


class LRSchedulerStateHandler(StateDictHandler):
    """Handles a learning rate scheduler."""


class SamplerStateHandler(StateDictHandler):
    """Handles an ElasticSampler, which deals the samples anew when it is loaded."""


Registry = list[tuple[type, type[StateHandler]]]

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (LRScheduler, LRSchedulerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> Registry:
    """Returns the pairs of a type and the handler of its objects, in order of use. Changes of the list have effect."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Replaces the pairs, for states made later."""
    _registry[:] = registry


class TorchState(ComparedState):
    """State of a training with PyTorch. All arguments become attributes.

    Models, optimizers, learning rate schedulers and ElasticSampler keep their identity: restore() and sync() change
    them in place. So does any object with state_dict() and load_state_dict(), such as GradScaler. Other values must be
    picklable. A commit is allowed during merges of local updates. In elastic jobs, commits compare the parameters and
    the states of optimizers that should be equal on all ranks.

    Args:
        model: a model; more of them have other names.
        optimizer: its optimizer.
        **values: anything else: models, optimizers, schedulers, samplers, numbers.
    """

    _handlers: dict[str, StateHandler]
    _pickled_by: ClassVar[Mapping[type, Any]] = {Tensor: reduce_tensor}

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        values |= {"model": model, "optimizer": optimizer}
        # In an order that does not depend on the call, because sync() and comparisons follow it on all ranks.
        handlers = {name: made for name, value in sorted(values.items()) if (made := _handler_of(value)) is not None}
        vars(self)["_handlers"] = handlers
        super().__init__(broadcast_object, rank, **{n: v for n, v in values.items() if n not in handlers})
        for name, handler in handlers.items():
            vars(self)[name] = handler.value
        self._comparison = comparison_of(lambda: {name: handler.value for name, handler in handlers.items()})

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = vars(self).get("_handlers", {})  # not there yet where a derived class sets attributes first
        if name in handlers:
            handlers[name].set_value(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        """Copies everything in memory."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Goes back to the last save()."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Makes everything that of rank 0 on all ranks, or models their mean, and saves it. Collective."""
        begin_sync()
        for handler in self._handlers.values():
            handler.sync()
        super().sync()
        end_sync()
        # Not before: a loss in the middle must leave the last commit as it was.
        for handler in self._handlers.values():
            handler.save()
        self._compare()

    def _layout(self) -> Layout:
        parts = dict(super()._layout())
        for name, handler in self._handlers.items():
            parts[name] = Part("object", dtype=type(handler.value).__name__)
            parts |= {f"{name}.{key}": part for key, part in handler._layout().items()}
        return parts

    def _check_hand_over(self) -> None:
        for name, handler in self._handlers.items():
            if type(handler)._hand_over is StateHandler._hand_over:
                kind = type(handler).__name__
                raise errors.UnsupportedError(
                    f"elastic.snapshot_dir: {kind}, which handles {name}, is none that snapshots can write; derive it "
                    "from StateDictHandler, or save checkpoints"
                )

    def _hand_over(self) -> Any:
        saved = {name: handler._hand_over() for name, handler in self._handlers.items()}
        return {"objects": saved, "values": super()._hand_over()}

    def _take_over(self, saved: Any) -> None:
        objects = saved["objects"]
        require_same_names(objects, self._handlers)
        for name, handler in self._handlers.items():
            try:
                handler._take_over(objects[name])
            except Exception as error:
                raise errors.InvalidArgumentError(f"{name}: {error}") from error
        values = saved["values"]
        for name, value in values.items():
            now = getattr(self, name, None)
            if isinstance(value, Tensor) and isinstance(now, Tensor):
                values[name] = value.to(now.device)
        super()._take_over(values)

    def _forget_loaded(self) -> None:
        for handler in self._handlers.values():
            handler._forget_loaded()

    def _objects(self) -> Any:
        return functions


def _handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    keeps_state = all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))
    return StateDictHandler(value) if keeps_state and not isinstance(value, type) else None


def snapshot(value: Any, old: Any = None) -> Any:
    """Returns a deep copy of `value`, in the memory of the tensors of `old`, an earlier copy, where these fit."""
    if isinstance(value, Tensor):
        fits = type(old) is type(value) is Tensor and old.layout == value.layout == torch.strided
        if fits and (old.shape, old.dtype, old.device) == (value.shape, value.dtype, value.device):
            return old.copy_(value.detach())
        return value.detach().clone()
    if isinstance(value, dict):
        known = old if isinstance(old, dict) else {}
        made = copy.copy(value)
        made.update((key, snapshot(item, known.get(key))) for key, item in value.items())
        return made
    if type(value) in (list, tuple):
        items = old if type(old) is type(value) and len(old) == len(value) else [None] * len(value)
        return type(value)(snapshot(item, before) for item, before in zip(value, items, strict=True))
    return copy.deepcopy(value)
