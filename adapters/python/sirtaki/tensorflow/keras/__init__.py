"""sirtaki.tensorflow.keras: sirtaki.keras, with the name of horovod.tensorflow.keras."""

from sirtaki.keras import *  # noqa: F403
from sirtaki.keras import __all__ as __all__
