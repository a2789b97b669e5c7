"""horovod.tensorflow.keras.callbacks."""

from sirtaki.keras.callbacks import *  # noqa: F403
