"""Loads libsirtaki_tensorflow.so, the operations for TensorFlow 2.16 to 2.21, once."""

from __future__ import annotations

import ctypes
import re
import warnings
from pathlib import Path
from typing import Any

from sirtaki import basics

_OLDEST, _NEWEST = (2, 16), (2, 21)
_NEEDED = "sirtaki.tensorflow needs TensorFlow 2.16 to 2.21"
_INSTALL = 'pip install "tensorflow>=2.16,<2.22"'

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(f"{_NEEDED}, and there is none: {_INSTALL} ({error})", name="tensorflow") from None


def version_of(text: str) -> tuple[int, int]:
    """Returns major and minor number of a version text; (0, 0) for other texts."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def check_version(text: str) -> None:
    """Raises ImportError for a TensorFlow that is too old; warns about an untested newer one."""
    if version_of(text) < _OLDEST:
        raise ImportError(f"{_NEEDED}, and this is {text}: {_INSTALL}", name="tensorflow")
    if version_of(text) > _NEWEST:
        warnings.warn(f"TensorFlow {text} is newer than what Sirtaki was tried with ({_NEEDED})", stacklevel=2)


def _load() -> tuple[Any, bool, Any]:
    check_version(tf.__version__)
    path = str(Path(basics.__file__).with_name("libsirtaki_tensorflow.so"))
    operations = tf.load_op_library(path)
    functions = ctypes.CDLL(path)
    functions.sirtaki_tensorflow_problem.restype = ctypes.c_char_p
    problem = functions.sirtaki_tensorflow_problem().decode()
    if problem:
        raise ImportError(f"{_NEEDED}; TensorFlow {tf.__version__} does not fit: {problem}", name="tensorflow")
    waits_apart = bool(functions.sirtaki_tensorflow_asynchronous())
    if not waits_apart:
        warnings.warn(
            f"the callbacks of this TensorFlow {tf.__version__} are of another C++ library than Sirtaki's: every "
            "operation that waits blocks one of TensorFlow's threads; gradients are still combined together",
            stacklevel=2,
        )
    basics.on_shutdown(functions.sirtaki_tensorflow_forget)
    functions.sirtaki_tensorflow_renew.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
    functions.sirtaki_tensorflow_renew.restype = None
    return operations, waits_apart, functions.sirtaki_tensorflow_renew


#: Wrappers of the operations; True if they wait without a thread of TensorFlow; makes operations that were traced with
#: an id below those of streams use a stream.
operations, asynchronous, renew_stream = _load()
