"""Names and shapes of parameters: those of a file of tensors, or as many as a person states."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sirtaki import _dtypes, errors

_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
#: Statistics of BatchNorm, which are no parameters.
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_LARGEST_HEADER = 100 << 20
_LAYERS = 16


@dataclass(frozen=True)
class Model:
    """Parameters in the order of the forward pass.

    Attributes:
        found: a text for people on where they come from.
        names, shapes, dtypes: one entry a parameter; dtypes as "float32".
    """

    found: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """Returns the number of elements."""
        return sum(math.prod(shape) for shape in self.shapes)


def of_count(parameters: int) -> Model:
    """Returns a stand-in for a model of so many parameters: square matrices of one size, and a vector for the rest."""
    side = math.isqrt(parameters // _LAYERS)
    shapes: list[tuple[int, ...]] = [(side, side)] * _LAYERS if side > 0 else []
    rest = parameters - side * side * len(shapes)
    shapes += [(rest,)] if rest else []
    names = tuple(f"layer{i}" for i in range(len(shapes)))
    found = f"{parameters:,} parameters, taken as {_LAYERS} square matrices: the shapes of a model would say more"
    return Model(found, names, tuple(shapes), ("float32",) * len(shapes))


def of_safetensors(path: Path) -> Model:
    """Returns the parameters of a file of safetensors, of which only the header is read.

    Raises:
        InvalidArgumentError: the file is none.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        text = file.read(size) if 2 <= size <= _LARGEST_HEADER else b""
    try:
        rows = {name: row for name, row in json.loads(text).items() if name != "__metadata__"}
        shapes = {name: (tuple(row["shape"]), _FLOATS.get(row["dtype"], "")) for name, row in rows.items()}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise errors.InvalidArgumentError(f"{path} is no file of safetensors, or it is cut off") from None
    return of_rows(str(path), shapes)


def of_rows(source: str, rows: Mapping[str, tuple[tuple[int, ...], str]]) -> Model:
    """Returns the parameters among named tensors: those of a floating-point dtype that are no statistics.

    Raises:
        InvalidArgumentError: none is left.
    """
    kept = {
        name: row
        for name, row in rows.items()
        if row[1] in _FLOATS.values() and name.rpartition(".")[2] not in _BUFFERS and math.prod(row[0]) > 0
    }
    if not kept:
        raise errors.InvalidArgumentError(f"{source} holds no parameter of a floating-point dtype")
    left = len(rows) - len(kept)
    total = sum(math.prod(shape) for shape, _ in kept.values())
    found = f"{source}: {len(kept)} tensors with {total:,} parameters"
    found += f"; {left} others are no parameters (integers, statistics of BatchNorm)" if left else ""
    shapes, dtypes = zip(*kept.values(), strict=True)
    return Model(found, tuple(kept), shapes, dtypes)


def descriptions(model: Model) -> list[Any]:
    """Returns the tensors as the runtime reads them, without memory."""
    return [
        (0, _dtypes.WIRE_TYPES[dtype].code, 0, 0, list(shape), None)
        for shape, dtype in zip(model.shapes, model.dtypes, strict=True)
    ]
