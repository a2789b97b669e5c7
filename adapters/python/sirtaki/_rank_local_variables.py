"""Variables whose gradients are not combined, because every rank has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sirtaki.errors import require


def _unwrap_keras(source: Any) -> Any:
    """Returns the value inside a variable of Keras, and any other object itself."""
    inner = getattr(source, "_value", None)
    return source if inner is None else inner


class RankLocalVariables:
    """Set of variables, or other sources, whose gradients stay local; scales these gradients.

    Args:
        scale: divides local gradients by the number of ranks, as Horovod does: combined gradients belong to the mean of
            all losses, to which a rank contributes this part.
    """

    def __init__(self, scale: bool = True) -> None:
        self._scale = scale
        self._variables: dict[int, Any] = {}  # values keep the variable alive, so that its id stays unique

    def __bool__(self) -> bool:
        return bool(self._variables)

    def __contains__(self, source: Any) -> bool:
        return id(_unwrap_keras(source)) in self._variables

    def add(self, source: Any) -> None:
        """Makes the gradient of a variable local."""
        self._variables[id(_unwrap_keras(source))] = _unwrap_keras(source)

    def reduce(
        self,
        combine: Callable[[list[Any], list[Any]], list[Any]],
        grads: Sequence[Any],
        sources: Sequence[Any],
        ranks: int,
    ) -> list[Any]:
        """Returns all gradients in order: local ones scaled, the others from `combine(grads, sources)`."""
        shared = [i for i, source in enumerate(sources) if source not in self]
        factor = ranks if self._scale else 1
        results = [
            _divided(grad, factor) if source in self else grad for grad, source in zip(grads, sources, strict=True)
        ]
        if shared:
            combined = combine([grads[i] for i in shared], [sources[i] for i in shared])
            for i, grad in zip(shared, combined, strict=True):
                results[i] = grad
        return results


def _divided(grad: Any, ranks: int) -> Any:
    if grad is None or ranks == 1:
        return grad
    if hasattr(grad, "dense_shape"):  # TensorFlow's IndexedSlices
        return type(grad)(grad.values / ranks, grad.indices, grad.dense_shape)
    return grad / ranks


def trainable_weights_of(layers: Any) -> list[Any]:
    """Returns the trainable weights of a layer or of several; [] for None. Raises ValueError for other objects."""
    if layers is None:
        return []
    listed = list(layers) if isinstance(layers, Iterable) and not hasattr(layers, "trainable_weights") else [layers]
    for layer in listed:
        known = hasattr(layer, "trainable_weights")
        require(known, f"local_layers has a {type(layer).__name__}; it must be layers of Keras")
    return [variable for layer in listed for variable in layer.trainable_weights]
