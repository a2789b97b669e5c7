"""What the Keras adapter needs of the framework behind Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sirtaki import errors

try:
    import keras
except ImportError as error:
    raise ImportError(
        f"sirtaki.keras needs Keras 3, and there is none (pip install keras): {error}", name="keras"
    ) from None
if int(keras.__version__.partition(".")[0]) < 3:
    raise ImportError(f"sirtaki.keras needs Keras 3, and this is {keras.__version__}", name="keras")


class Reducer(Protocol):
    """Combines the gradients of one optimizer."""

    @property
    def name(self) -> str:
        """The same on all ranks."""

    #: This rank makes its steps by itself: reduce() gives back what it gets. Set between steps.
    alone: bool

    def watch(self, variables: Sequence[Any]) -> None:
        """The optimizer will be given gradients of these."""

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The combined gradients; collective."""

    def applied(self) -> None:
        """The optimizer has used them."""


class ModelArrays(Protocol):
    """What variables hold, as arrays that stay where they are."""

    variables: list[Any]
    arrays: list[Any]

    def pull(self) -> None:
        """The arrays become what the variables are. Outside of functions that are being traced."""

    def push(self) -> None:
        """The variables become what the arrays are."""


class Backend(Protocol):
    """One framework."""

    def choose(self, **arguments: Any) -> Any:
        """Checks how gradients are to be combined. Raises ValueError."""

    def group_size(self, choices: Any) -> int:
        """How many ranks take part."""

    def reducer(self, choices: Any, local: bool) -> Reducer:
        """For one optimizer. `local`: alone may be set."""

    def memory(self, variables: Sequence[Any]) -> ModelArrays:
        """Of these variables."""

    def after_step(self, optimizer: Any, reducer: Any, training: Any) -> None:
        """Has LocalTraining.after_step() called, now or whenever what is being traced has made a step."""

    def broadcast(self, variables: Sequence[Any], root_rank: int) -> None:
        """Overwrites Keras variables with those of a rank; collective."""

    def in_branch(self) -> bool:
        """True where the code that is being traced may run on one rank and not on another."""


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
