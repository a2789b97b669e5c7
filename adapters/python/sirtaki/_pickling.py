"""Pickling of objects that ranks exchange."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections import ChainMap
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar


def pickled(value: object) -> bytearray:
    """Returns `value` as bytes for pickle.loads(); by cloudpickle, if installed, which also pickles local functions."""
    buffer = io.BytesIO()
    try:
        import cloudpickle

        cloudpickle.dump(value, buffer)
    except ImportError:
        pickle.dump(value, buffer)
    return bytearray(buffer.getvalue())


def pickled_apart(value: object, pickled_by: Mapping[type, Any]) -> tuple[bytearray, list[memoryview]]:
    """Returns `value` as bytes for pickle.loads(), and its large arrays as the buffers of that call, without copies.

    Args:
        value: the object.
        pickled_by: functions for objects of certain types, like a dispatch_table of pickle.
    """
    base: Any = pickle.Pickler
    known: Mapping[type, Any] = copyreg.dispatch_table
    with suppress(ImportError):
        import cloudpickle

        base, known = cloudpickle.Pickler, cloudpickle.Pickler.dispatch_table

    class Pickler(base):
        dispatch_table: ClassVar[Mapping[type, Any]] = ChainMap({**pickled_by}, {**known})

    stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    return bytearray(stream.getvalue()), [buffer.raw() for buffer in buffers]
