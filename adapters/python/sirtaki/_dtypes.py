"""Wire types: the memory by which elements of each dtype are sent.

The runtime sums eleven dtypes. Elements of another dtype are sent as memory of one of these, with extra dimensions
after those of the tensor; the extra dimensions differ between dtypes, so that ranks with different dtypes get an error.
Complex numbers are summed as pairs of real numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sirtaki import errors


class WireType(NamedTuple):
    """Memory by which elements of one dtype are sent."""

    #: sirtaki_dtype of the memory.
    code: int
    #: Bytes of one element of the memory.
    size: int
    #: Dimensions after those of the tensor.
    extra: tuple[int, ...] = ()
    #: Names of the supported members of ReduceOp; None leaves the check to the runtime.
    reduce_ops: Collection[str] | None = None


_LINEAR = ("SUM", "AVERAGE")

#: Wire types by the name that torch and numpy give a dtype.
WIRE_TYPES: dict[str, WireType] = {
    "uint8": WireType(0, 1),
    "int8": WireType(1, 1),
    "uint16": WireType(2, 2),
    "int16": WireType(3, 2),
    "int32": WireType(4, 4),
    "int64": WireType(5, 8),
    "float16": WireType(6, 2),
    "bfloat16": WireType(7, 2),
    "float32": WireType(8, 4),
    "float64": WireType(9, 8),
    "bool": WireType(10, 1),
    "complex32": WireType(6, 2, (2,), _LINEAR),
    "complex64": WireType(8, 4, (2,), _LINEAR),
    "complex128": WireType(9, 8, (2,), _LINEAR),
    "uint32": WireType(2, 2, (2,), ()),
    "uint64": WireType(2, 2, (4,), ()),
    "float8_e4m3fn": WireType(0, 1, (1,), ()),
    "float8_e5m2": WireType(0, 1, (1, 1), ()),
    "float8_e4m3fnuz": WireType(0, 1, (1, 1, 1), ()),
    "float8_e5m2fnuz": WireType(0, 1, (1, 1, 1, 1), ()),
    "float8_e8m0fnu": WireType(0, 1, (1, 1, 1, 1, 1), ()),
    "float4_e2m1fn_x2": WireType(0, 1, (1, 1, 1, 1, 1, 1), ()),
}


def wire_type(name: str, reduce_op: str | None = None) -> WireType:
    """Returns the wire type of a dtype.

    Args:
        name: the dtype, as torch and numpy name it.
        reduce_op: the member of ReduceOp to be applied; None for operations that only move data.

    Raises:
        InvalidArgumentError: the dtype cannot be sent, or not be reduced by `reduce_op`; the text says what to do.
    """
    found = WIRE_TYPES.get(name)
    if found is None:
        raise errors.InvalidArgumentError(
            f"tensors of {name} cannot be sent; convert to one of {', '.join(WIRE_TYPES)}",
        )
    allowed = found.reduce_ops
    if reduce_op is None or allowed is None or reduce_op in allowed:
        return found
    if allowed:
        known = " and ".join(op.capitalize() for op in allowed)
        raise errors.InvalidArgumentError(
            f"{reduce_op.capitalize()} of {name} does not exist: complex numbers have {known}, as pairs of real numbers"
        )
    wide = "float32" if name.startswith("float") else "int64"
    raise errors.InvalidArgumentError(
        f"tensors of {name} can be moved (broadcast, allgather, alltoall), but not reduced; convert to {wide} first"
    )


def summed_code(name: str) -> int:
    """Returns the sirtaki_dtype of a dtype that is summed without extra dimensions. Raises as wire_type() does."""
    how = wire_type(name, "SUM")
    if how.extra:
        raise errors.InvalidArgumentError(f"{name} cannot be sent as a gradient here; convert to pairs of real numbers")
    return how.code
