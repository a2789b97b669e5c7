"""horovod.keras.elastic."""

from sirtaki.keras.elastic import *  # noqa: F403
