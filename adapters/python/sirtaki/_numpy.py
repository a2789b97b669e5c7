"""Operations on numpy arrays: objects, values of metrics, states that no framework's tensor holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sirtaki import errors
from sirtaki.ops import Description, Ops

_DTYPES = {
    name: code
    for code, name in enumerate(
        ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool")
    )
}

Array = np.ndarray[Any, Any]


def dtype_code(name: str) -> int:
    """The sirtaki_dtype of a dtype's name. Raises InvalidArgumentError when there is none."""
    code = _DTYPES.get(name)
    if code is None:
        raise errors.InvalidArgumentError(f"{name} cannot be sent; convert to one of {', '.join(_DTYPES)}")
    return code


class _Lent:
    """DLPack's capsule as numpy wants it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **how: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class NumpyAdapter:
    """See sirtaki.ops.TensorAdapter."""

    def describe(self, tensor: Array) -> Description:
        """Memory of a row-major array."""
        return (tensor.ctypes.data, dtype_code(tensor.dtype.name), 0, 0, tensor.shape, None)

    def queue(self, tensor: Array) -> None:
        """Arrays are on the CPU."""
        del tensor

    def input(self, tensor: Array) -> Array:
        """The array itself, or a row-major copy in this machine's byte order."""
        return np.asarray(tensor, tensor.dtype.newbyteorder("="), order="C")

    def overlaps(self, tensor: Array) -> bool:
        """True when nothing can be written into it."""
        return not tensor.flags.writeable

    def same_memory(self, one: Array, other: Array) -> bool:
        """True when writing to one writes to the other."""
        return one.ctypes.data == other.ctypes.data

    def empty_like(self, tensor: Array) -> Array:
        """Row-major memory of the same shape and dtype."""
        return np.empty(tensor.shape, tensor.dtype)

    def clone(self, tensor: Array) -> Array:
        """A row-major copy."""
        return np.array(tensor, order="C")

    def copy_back(self, target: Array, source: Array) -> None:
        """Writes `source` into `target`."""
        target[...] = source

    def item_size(self, tensor: Array) -> int:
        """Bytes of one element."""
        return tensor.itemsize

    def from_result(self, memory: Any, like: Array, dims: Sequence[int]) -> Array:
        """An array over the runtime's memory, which lives as long as the array."""
        if memory is None:
            return np.empty(tuple(dims), like.dtype)
        return np.from_dlpack(_Lent(memory)).view(like.dtype).reshape(tuple(dims))

    def splits(self, values: Sequence[int]) -> Array:
        """Counts as an array of int32."""
        return np.array(list(values), np.int32)


#: The operations on numpy arrays.
numpy_ops = Ops(NumpyAdapter())
