"""Operations on numpy arrays: objects, values of metrics, states that no framework's tensor holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sirtaki._dtypes import wire_type
from sirtaki.ops import Description, Ops, ReduceOp

Array = np.ndarray[Any, Any]


class _DLPackBuffer:
    """DLPack's capsule as numpy wants it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **how: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class NumpyAdapter:
    """See sirtaki.ops.TensorAdapter."""

    def describe(self, tensor: Array, reduce_op: ReduceOp | None = None) -> Description:
        """Memory of a row-major array."""
        how = wire_type(tensor.dtype.name, None if reduce_op is None else reduce_op.name)
        return (tensor.ctypes.data, how.code, 0, 0, (*tensor.shape, *how.extra), None)

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
        """Bytes of one element of the memory that travels."""
        return wire_type(tensor.dtype.name).size

    def from_result(self, memory: Any, like: Array, dims: Sequence[int]) -> Array:
        """An array over the runtime's memory, which lives as long as the array."""
        own = tuple(dims[: like.ndim])
        if memory is None:
            return np.empty(own, like.dtype)
        return np.from_dlpack(_DLPackBuffer(memory)).view(like.dtype).reshape(own)

    def splits(self, values: Sequence[int]) -> Array:
        """Counts as an array of int32."""
        return np.array(list(values), np.int32)


#: The operations on numpy arrays.
numpy_ops = Ops(NumpyAdapter())
