"""Pickling of objects that ranks exchange."""

from __future__ import annotations

import io
import pickle


def pickled(value: object) -> bytearray:
    """Returns `value` as bytes for pickle.loads(); by cloudpickle, if installed, which also pickles local functions."""
    buffer = io.BytesIO()
    try:
        import cloudpickle

        cloudpickle.dump(value, buffer)
    except ImportError:
        pickle.dump(value, buffer)
    return bytearray(buffer.getvalue())
