"""The layout of an elastic state: its names, shapes and dtypes, which sync() needs to be the same on all ranks.

Ranks compare the digests of their layouts before sync() transfers anything. So a new rank with the code of another
program ends alone, with an error that names the difference, and the ranks that have the state go on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from sirtaki import basics, errors
from sirtaki.ops import Ops

#: The lengths of dimensions; None for one that may change.
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Part:
    """A part of a state."""

    #: For messages: "tensor", for example.
    kind: str
    #: The shape of a tensor; a value, which may have another one on each rank, has None.
    shape: Shape | None = None
    dtype: str = ""
    #: Its name for messages where the key is a number; may differ between ranks.
    label: str = field(default="", compare=False)


#: Kind of a picklable value, which sync() takes from rank 0.
VALUE = "value"

#: Parts by names that are the same on all ranks.
Layout = Mapping[str, Part]


def part_of(kind: str, value: Any, label: str = "") -> Part:
    """Returns the part for a tensor or a variable of any framework."""
    dtype = getattr(value, "dtype", "")
    return Part(kind, shape_of(value), str(getattr(dtype, "name", dtype)), label)


def shape_of(value: Any) -> Shape | None:
    """Returns the shape of a tensor or a variable of any framework; None if the number of its dimensions may change."""
    try:
        return tuple(getattr(value, "shape", ()))
    except ValueError:  # a TensorShape of TensorFlow
        return None


def fits(shape: Shape | None, into: Shape | None) -> bool:
    """Returns whether a variable of the shape `into` can take a value of another one."""
    if shape is None or into is None:
        return into is None
    return len(shape) == len(into) and all(there in (None, here) for here, there in zip(shape, into, strict=True))


def digest(layout: Layout) -> str:
    """Returns a text that is the same for equal layouts, in any order."""
    rows = sorted((key, repr((part.kind, part.shape, part.dtype))) for key, part in layout.items())
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def difference(own: Layout, theirs: Layout, here: str = "here", there: str = "on rank 0") -> str:
    """Returns a text about the first part in which two layouts differ; "" if they are equal.

    Args:
        own: the layout of one rank.
        theirs: the layout of another rank, whose order decides.
        here: tells where the first one is.
        there: tells where the other one is.
    """
    keys = [*theirs, *(key for key in own if key not in theirs)]
    different = [key for key in keys if own.get(key) != theirs.get(key)]
    if not different:
        return ""
    text = _described(different[0], own.get(different[0]), theirs.get(different[0]), (here, there))
    return text + (f", and {len(different) - 1} more differ" if len(different) > 1 else "")


def _described(key: str, own: Part | None, theirs: Part | None, places: tuple[str, str]) -> str:
    known = own or theirs
    assert known is not None
    name = f"{known.kind} {known.label or repr(key)}"
    if own is None or theirs is None:
        has, lacks = places if theirs is None else places[::-1]
        return f"{name} is {has}, but not {lacks}"
    if own.kind != theirs.kind:
        return f"{key!r}: {own.kind} {places[0]}, {theirs.kind} {places[1]}"
    if own.shape != theirs.shape:
        return f"{name}: {own.shape} {places[0]}, {theirs.shape} {places[1]}"
    return f"{name}: {own.dtype} {places[0]}, {theirs.dtype} {places[1]}"


def require_same_layout(state: Any, has_state: bool) -> None:
    """Compares the layout of a state with that of rank 0. Collective in elastic jobs, before sync().

    The names of values count for a new rank of a job whose rank 0 has the state. Ranks that begin together take the
    values of rank 0 as they are.

    Args:
        state: the state of the training.
        has_state: this rank has got the state of the job in an earlier sync().

    Raises:
        InvalidArgumentError: this rank does not have the state, and another layout than rank 0, which has it.
        RanksChangedError: such a rank has ended; on the others.
        MismatchError: ranks differ that begin together or have the state; the same on all ranks.
    """
    if not basics.is_elastic() or basics.size() == 1:
        return
    try:
        objects = state._objects()
    except ImportError:
        return  # no numpy, which is so on all ranks
    whole = state._layout()
    bare = _without_values(whole)
    rows = objects.allgather_object((has_state, digest(bare), digest(whole)), "sirtaki.layout")
    new = [rows[0][0] and not has for has, _, _ in rows]
    different = [rank for rank, row in enumerate(rows) if row[1 + new[rank]] != rows[0][1 + new[rank]]]
    if not different:
        return
    is_new = new[basics.rank()]
    theirs = objects.broadcast_object(whole, 0, "sirtaki.layout.parts")
    layout, theirs = (whole, theirs) if is_new else (bare, _without_values(theirs))
    strangers = [rank for rank in different if new[rank]]
    if basics.rank() in strangers:
        raise errors.InvalidArgumentError(
            f"this process cannot join the job: {difference(layout, theirs)}. Start it with the program of the others"
        )
    if strangers:
        _await_their_end()
    text = difference(layout, theirs, f"on rank {basics.rank()}")
    text = objects.allgather_object(text, "sirtaki.layout.texts")[different[0]]
    raise errors.MismatchError(f"the states of ranks differ: {text}", different[0])


def _without_values(layout: Layout) -> Layout:
    return {key: part for key, part in layout.items() if part.kind != VALUE}


def _await_their_end() -> None:
    """Raises RanksChangedError when a rank that waits for nobody has ended. Nothing is transferred meanwhile."""
    ops = Ops(cast("Any", None))  # a barrier has no tensors
    ops.start_one(ops.barrier("sirtaki.layout.end")).wait()
