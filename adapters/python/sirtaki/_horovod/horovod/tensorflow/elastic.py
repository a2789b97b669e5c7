"""horovod.tensorflow.elastic."""

from sirtaki.tensorflow.elastic import *  # noqa: F403
