"""Interface between the Keras adapter and the framework behind Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sirtaki import errors
from sirtaki._unsupported import check_library, missing_library

try:
    import keras
except ImportError as error:
    raise missing_library("sirtaki.keras", "keras", "3", error) from None
check_library("sirtaki.keras", "keras", "3", keras.__version__)


class Reducer(Protocol):
    """Combines the gradients of one optimizer."""

    @property
    def name(self) -> str:
        """Name of the reducer; the same on all ranks."""

    #: True while this rank makes steps by itself: reduce() returns its input. Set between steps.
    alone: bool

    def watch(self, variables: Sequence[Any]) -> None:
        """Announces the variables whose gradients reduce() will get."""

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the combined gradients; collective."""

    def applied(self) -> None:
        """Called after the optimizer has applied the gradients."""


class ModelArrays(Protocol):
    """Arrays at fixed addresses with the values of variables."""

    variables: list[Any]
    arrays: list[Any]

    def pull(self) -> None:
        """Updates the arrays from the variables. Not while a function is traced."""

    def push(self) -> None:
        """Updates the variables from the arrays."""


class Backend(Protocol):
    """Operations of one framework."""

    @property
    def choose(self) -> Callable[..., Any]:
        """Returns checked options of the reduction for its keyword arguments. Raises ValueError."""

    def group_size(self, choices: Any) -> int:
        """Returns the number of participating ranks."""

    def reducer(self, choices: Any, local: bool) -> Reducer:
        """Returns a reducer for one optimizer; with `local` its attribute `alone` may be set."""

    def memory(self, variables: Sequence[Any]) -> ModelArrays:
        """Returns the arrays of these variables."""

    def after_step(self, optimizer: Any, reducer: Any, training: Any) -> None:
        """Calls LocalSgd.after_step() now, or after each step of the function that is being traced."""

    def broadcast(self, variables: Sequence[Any], root_rank: int) -> None:
        """Overwrites Keras variables with those of a rank; collective."""

    def in_branch(self) -> bool:
        """Returns True if the code that is being traced may run on some ranks only."""


def _choose() -> Backend:
    name = keras.backend.backend()
    if name == "tensorflow":
        from sirtaki.keras import _tensorflow

        return _tensorflow.TensorFlowBackend()
    if name == "torch":
        from sirtaki.keras import _torch

        return _torch.TorchBackend()
    raise errors.UnsupportedError(
        f"Keras runs on {name}; sirtaki.keras serves TensorFlow and torch (KERAS_BACKEND=tensorflow or torch)"
    )


backend = _choose()
