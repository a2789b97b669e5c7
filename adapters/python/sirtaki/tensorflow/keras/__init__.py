"""sirtaki.tensorflow.keras: sirtaki.keras, by the name that horovod.tensorflow.keras has."""

from sirtaki.keras import *  # noqa: F403
from sirtaki.keras import __all__ as __all__
