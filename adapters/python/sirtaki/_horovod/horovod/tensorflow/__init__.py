"""horovod.tensorflow: sirtaki.tensorflow."""

from __future__ import annotations

from typing import Any

import horovod
from sirtaki import tensorflow as _tensorflow
from sirtaki.tensorflow import *  # noqa: F403

__version__ = horovod.__version__
__all__ = list(_tensorflow.__all__)


def __getattr__(name: str) -> Any:
    return getattr(_tensorflow, name)
