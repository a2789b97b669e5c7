"""Training: a TorchState whose batch size and learning rate follow the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from sirtaki._telemetry.lines import say
from sirtaki.basics import rank, size
from sirtaki.elastic._layout import Layout, Part
from sirtaki.errors import require
from sirtaki.torch.elastic.state import TorchState
from sirtaki.torch.functions import broadcast_object

#: Learning rates in groups of parameters: those of optimizers, and those that schedulers of torch keep there.
_OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
#: The same in schedulers.
_OF_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs", "eta_min")
#: Part of batch_size that the batch of all ranks may be off before rank 0 says it.
_TOLD_ABOVE = 0.05


class Training(TorchState):
    """State of a training with PyTorch whose batch size and learning rate follow the number of ranks.

    Everything else is that of TorchState. sync() changes the learning rate, the same on all ranks, so a commit or a
    snapshot that an earlier number of ranks has made is right, too. It changes the rates of all optimizers in the
    state and of all schedulers of torch in it. Reset callbacks should not set them then. All ranks give the same
    arguments.

    Batch sizes are for gradients that are averaged (op=Average) and one backward pass in each step. With more of them
    (backward_passes_per_step), a step takes as many times the samples.

    Args:
        model: a model; more of them have other names.
        optimizer: its optimizer.
        batch: "rank": each rank keeps its batch size, so the batch of all ranks together follows their number.
            "global": the batch of all ranks together stays the same, as far as equal shares allow; rank 0 says when
            it is off by more than 5 %.
        batch_size: number of samples in a backward pass: of a rank with "rank", of all ranks together with "global".
        lr: "keep": the learning rate stays. "linear": it follows the number of ranks. "sqrt": it follows the square
            root of that. Or a function of the old and the new number of ranks that returns a factor for the learning
            rate; rank 0 calls it.
        **values: anything else, as in TorchState.

    Raises:
        InvalidArgumentError: an argument has another value, or "global" has no batch_size or scales the learning rate.
    """

    #: Number of ranks for which the present learning rate is. A value of the state.
    lr_ranks: int

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        batch: str = "rank",
        batch_size: int | None = None,
        lr: str | Callable[[int, int], float] = "keep",
        **values: Any,
    ) -> None:
        require(batch in ("rank", "global"), f'batch is "rank" or "global", not {batch!r}; values have other names')
        known = callable(lr) or lr in ("keep", "linear", "sqrt")
        require(known, f'lr is "keep", "linear", "sqrt" or a function, not {lr!r}; values have other names')
        require(batch_size is None or batch_size > 0, f"batch_size must be positive, not {batch_size}")
        if batch == "global":
            require(batch_size is not None, 'batch="global" needs batch_size, the samples of all ranks together')
            require(
                callable(lr) or lr == "keep",
                f'lr="{lr}" is for batches that follow the number of ranks; with batch="global", use lr="keep" or a '
                "function",
            )
        self._batch = batch
        self._batch_size = batch_size
        self._lr = lr
        #: Number of ranks for which rank 0 has compared the batch with batch_size.
        self._compared_ranks = 0
        super().__init__(model, optimizer, lr_ranks=size(), **values)

    @property
    def batch_size(self) -> int:
        """Number of samples in a backward pass of this rank, with the present number of ranks; the same on all ranks.

        Raises:
            InvalidArgumentError: no batch_size was given.
        """
        require(self._batch_size is not None, "this elastic.Training was made without batch_size")
        assert self._batch_size is not None
        return self._batch_size if self._batch == "rank" else max(1, round(self._batch_size / size()))

    def sync(self) -> None:
        """Does the same as TorchState.sync(), and lets the learning rate follow the number of ranks. Collective.

        Raises:
            InvalidArgumentError: the function `lr` fails, or returns no positive factor; the same on all ranks.
        """
        super().sync()
        self._tell_batch()
        old, new = self.lr_ranks, size()
        if old == new:
            return
        # Functions may differ between ranks, for example in random numbers.
        factor, trouble = broadcast_object(self._factor(old, new) if rank() == 0 else None, 0, "sirtaki.lr_factor")
        require(not trouble, trouble)
        if factor != 1:
            self._scale(factor)
            if rank() == 0:
                say(f"the learning rate is multiplied by {factor:.4g} for {new} ranks in place of {old}")
        self.lr_ranks = new
        self._save_attributes()

    def _layout(self) -> Layout:
        lr = "a function" if callable(self._lr) else repr(self._lr)
        arguments = {"batch": repr(self._batch), "batch_size": str(self._batch_size), "lr": lr}
        return {**super()._layout(), **{name: Part("argument", dtype=value) for name, value in arguments.items()}}

    def _take_over(self, saved: Any) -> None:
        # That of a TorchState has no lr_ranks: its rate is taken for that of the present ranks.
        super()._take_over({**saved, "values": {"lr_ranks": self.lr_ranks, **saved["values"]}})

    def _tell_batch(self) -> None:
        """Says once for each number of ranks that equal shares of the batch differ much from it."""
        ranks = size()
        if self._batch != "global" or rank() != 0 or ranks == self._compared_ranks:
            return
        self._compared_ranks = ranks
        assert self._batch_size is not None
        actual = ranks * self.batch_size
        if abs(actual - self._batch_size) > _TOLD_ABOVE * self._batch_size:
            say(
                f"the batch of {ranks} ranks has {actual} samples, {self.batch_size} of each rank, in place of "
                f"{self._batch_size} (batch_size)"
            )

    def _factor(self, old: int, new: int) -> tuple[float, str]:
        """Returns the factor for the learning rate, and in a text why there is none."""
        if not callable(self._lr):
            return {"keep": 1.0, "linear": new / old, "sqrt": math.sqrt(new / old)}[self._lr], ""
        call = f"the function lr({old}, {new})"
        try:
            factor = float(self._lr(old, new))
        except Exception as error:  # other ranks wait for the result
            return 0.0, f"{call} has failed on rank 0: {type(error).__name__}: {error}"
        valid = math.isfinite(factor) and factor > 0
        return factor, "" if valid else f"{call} must return a positive factor, not {factor}"

    def _scale(self, factor: float) -> None:
        """Multiplies the learning rates of optimizers and schedulers, and saves these."""
        optimizers, schedulers = (
            [handler for handler in self._handlers.values() if isinstance(handler.value, kind)]
            for kind in (torch.optim.Optimizer, LRScheduler)
        )
        groups = {id(group): group for handler in optimizers for group in handler.value.param_groups}
        # One tensor may be the rate of several groups.
        tensors = {id(group["lr"]): group["lr"] for group in groups.values() if isinstance(group.get("lr"), Tensor)}
        for tensor in tensors.values():
            tensor.mul_(factor)  # not a new one, because graphs read it
        for group in groups.values():
            for name in _OF_GROUPS:
                if name in group and id(group[name]) not in tensors:
                    group[name] = _scaled(group[name], factor)
        # One may be in the state under two names, or within another one.
        found = {id(one): one for handler in schedulers for one in _with_inner(handler.value)}
        for scheduler in found.values():
            _scale_scheduler(scheduler, factor)
        for handler in [*optimizers, *schedulers]:
            handler.save()


def _with_inner(scheduler: Any) -> Iterator[Any]:
    """Yields a scheduler behind those that it consists of."""
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from _with_inner(inner)
    yield scheduler


def _scale_scheduler(scheduler: Any, factor: float) -> None:
    for name in _OF_SCHEDULERS:
        if hasattr(scheduler, name):
            setattr(scheduler, name, _scaled(getattr(scheduler, name), factor))
    if hasattr(scheduler, "_last_lr"):
        scheduler._last_lr = [_scaled(group["lr"], 1.0) for group in scheduler.optimizer.param_groups]


def _scaled(value: Any, factor: float) -> Any:
    """Returns a learning rate, or a list of them, times a factor; None for optimizers that choose theirs.

    A tensor is a new one, because others may be the same object.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(_scaled(one, factor) for one in value)
    return None if value is None else value * factor
