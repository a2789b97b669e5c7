"""horovod.keras: sirtaki.keras."""

from __future__ import annotations

import horovod
from sirtaki import keras as _keras
from sirtaki.keras import *  # noqa: F403

__version__ = horovod.__version__
__all__ = list(_keras.__all__)
