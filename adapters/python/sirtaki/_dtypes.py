"""How each data type travels: the memory that the runtime is told of.

The runtime sums eleven types. A type of another kind is moved as memory of one of them, with dimensions behind the
tensor's own; they differ from type to type, so that ranks with different types find out. Complex numbers are sums of
pairs of reals, and the runtime may add those, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sirtaki import errors


class Sent(NamedTuple):
    """One data type as the runtime sees it."""

    #: sirtaki_dtype of the memory.
    code: int
    #: Bytes of one element of that memory.
    size: int
    #: Dimensions behind the tensor's own.
    extra: tuple[int, ...] = ()
    #: Names of members of ReduceOp that mean something for it; None: the runtime decides.
    combined_by: Collection[str] | None = None


_LINEAR = ("SUM", "AVERAGE")

#: By name, as torch and numpy have it.
SENT: dict[str, Sent] = {
    "uint8": Sent(0, 1),
    "int8": Sent(1, 1),
    "uint16": Sent(2, 2),
    "int16": Sent(3, 2),
    "int32": Sent(4, 4),
    "int64": Sent(5, 8),
    "float16": Sent(6, 2),
    "bfloat16": Sent(7, 2),
    "float32": Sent(8, 4),
    "float64": Sent(9, 8),
    "bool": Sent(10, 1),
    "complex32": Sent(6, 2, (2,), _LINEAR),
    "complex64": Sent(8, 4, (2,), _LINEAR),
    "complex128": Sent(9, 8, (2,), _LINEAR),
    "uint32": Sent(2, 2, (2,), ()),
    "uint64": Sent(2, 2, (4,), ()),
    "float8_e4m3fn": Sent(0, 1, (1,), ()),
    "float8_e5m2": Sent(0, 1, (1, 1), ()),
    "float8_e4m3fnuz": Sent(0, 1, (1, 1, 1), ()),
    "float8_e5m2fnuz": Sent(0, 1, (1, 1, 1, 1), ()),
    "float8_e8m0fnu": Sent(0, 1, (1, 1, 1, 1, 1), ()),
    "float4_e2m1fn_x2": Sent(0, 1, (1, 1, 1, 1, 1, 1), ()),
}


def sent(name: str, reduce_op: str | None = None) -> Sent:
    """Returns how elements of a type travel.

    Args:
        name: the type, as torch and numpy name it.
        reduce_op: the member of ReduceOp that combines them; None where they are moved only.

    Raises:
        InvalidArgumentError: the type cannot travel, or not be combined so; the text says what to do.
    """
    found = SENT.get(name)
    if found is None:
        raise errors.InvalidArgumentError(
            f"tensors of {name} cannot be sent; convert to one of {', '.join(SENT)}",
        )
    allowed = found.combined_by
    if reduce_op is None or allowed is None or reduce_op in allowed:
        return found
    if allowed:
        known = " and ".join(op.capitalize() for op in allowed)
        raise errors.InvalidArgumentError(
            f"{reduce_op.capitalize()} of {name} does not exist: complex numbers have {known}, as pairs of real numbers"
        )
    wide = "float32" if name.startswith("float") else "int64"
    raise errors.InvalidArgumentError(
        f"tensors of {name} can be moved (broadcast, allgather, alltoall), and not combined; convert to {wide} first"
    )


def summed_code(name: str) -> int:
    """Returns the sirtaki_dtype of a type whose elements the runtime itself can sum. Raises as sent() does."""
    how = sent(name, "SUM")
    if how.extra:
        raise errors.InvalidArgumentError(f"{name} cannot be sent as a gradient here; convert to pairs of real numbers")
    return how.code
