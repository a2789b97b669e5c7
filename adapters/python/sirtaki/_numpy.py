"""Operations on numpy arrays, for objects, metrics and states outside of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sirtaki._dtypes import wire_type
from sirtaki.ops import Description, Ops, ReduceOp

Array = np.ndarray[Any, Any]


class _DLPackBuffer:
    """Wraps a DLPack capsule for np.from_dlpack()."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **how: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class NumpyAdapter:
    """Implements sirtaki.ops.TensorAdapter for numpy arrays."""

    def describe(self, tensor: Array, reduce_op: ReduceOp | None = None) -> Description:
        """Returns the description of a row-major array."""
        how = wire_type(tensor.dtype.name, None if reduce_op is None else reduce_op.name)
        return (tensor.ctypes.data, how.code, 0, 0, (*tensor.shape, *how.extra), None)

    def queue(self, tensor: Array) -> None:
        """Returns None: arrays are on the CPU."""
        del tensor

    def input(self, tensor: Array) -> Array:
        """Returns the array itself, or a row-major copy in the byte order of this machine."""
        return np.asarray(tensor, tensor.dtype.newbyteorder("="), order="C")

    def overlaps(self, tensor: Array) -> bool:
        """Returns True if the array is read-only."""
        return not tensor.flags.writeable

    def same_memory(self, one: Array, other: Array) -> bool:
        """Returns True if a write to one array writes to the other."""
        return one.ctypes.data == other.ctypes.data

    def empty_like(self, tensor: Array) -> Array:
        """Returns uninitialized row-major memory of the same shape and dtype."""
        return np.empty(tensor.shape, tensor.dtype)

    def rows_on_gpu(self, like: Array, rows: int) -> None:
        """Returns None: arrays are in host memory."""

    def clone(self, tensor: Array) -> Array:
        """Returns a row-major copy."""
        return np.array(tensor, order="C")

    def copy_back(self, target: Array, source: Array) -> None:
        """Copies `source` into `target`."""
        target[...] = source

    def item_size(self, tensor: Array) -> int:
        """Returns the bytes of one element of the wire type."""
        return wire_type(tensor.dtype.name).size

    def from_result(self, memory: Any, like: Array, dims: Sequence[int]) -> Array:
        """Returns an array over memory of the runtime, which lives as long as the array."""
        own = tuple(dims[: like.ndim])
        if memory is None:
            return np.empty(own, like.dtype)
        return np.from_dlpack(_DLPackBuffer(memory)).view(like.dtype).reshape(own)

    def splits(self, values: Sequence[int]) -> Array:
        """Returns counts as an array of int32."""
        return np.array(list(values), np.int32)


#: Operations on numpy arrays.
numpy_ops = Ops(NumpyAdapter())
