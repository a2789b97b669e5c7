"""Transfer of a state of variables in sync(): their values as arrays of numpy, by the operations on these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sirtaki._numpy import Array, numpy_ops
from sirtaki.elastic import _transfer
from sirtaki.elastic._compared_variables import Job
from sirtaki.elastic._layout import shape_of


class _Sync(Job):
    ROWS = _transfer.CALL


class TransferOfVariables(_transfer.Transfer):
    """Implements Transfer. Texts are left for a broadcast.

    Args:
        value_of: returns a copy of the value of a variable, as an array.
    """

    def __init__(self, value_of: Callable[[Any], Any]) -> None:
        self._value_of = value_of

    def deliver(self, tensors: Sequence[Any], wanted: _transfer.Wanted) -> list[bool]:
        """Implements Transfer. Leaves all where the shape of a variable may differ between ranks: that is an error."""
        shapes = [shape_of(variable) for variable in tensors]
        if any(shape is None or None in shape for shape in shapes):
            return [bool(ranks) for ranks in wanted]
        return super().deliver(tensors, wanted)

    def _digest(self, tensor: Any) -> bytes | None:
        value = np.asarray(self._value_of(tensor))
        return None if value.dtype.hasobject else _transfer.digest(f"{value.dtype}{value.shape}", _bytes_of(value))

    def _rows(self, row: list[int]) -> list[list[int]]:
        return _Sync().rows(row)

    def _size(self, tensor: Any) -> int:
        return int(np.asarray(self._value_of(tensor)).nbytes)

    def _read(self, tensor: Any) -> Array:
        return _bytes_of(np.asarray(self._value_of(tensor)))

    def _write(self, tensor: Any, values: Array) -> None:
        own = np.asarray(self._value_of(tensor))
        tensor.assign(values.copy().view(own.dtype).reshape(own.shape))

    def _exchange(self, parts: Sequence[Array], splits: Sequence[int]) -> Array:
        data = np.concatenate([np.empty(0, np.uint8), *parts])
        result: Array = numpy_ops.start_one(numpy_ops.alltoall(data, splits, _transfer.VALUES, False)).wait()
        return result


def _bytes_of(value: Array) -> Array:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
