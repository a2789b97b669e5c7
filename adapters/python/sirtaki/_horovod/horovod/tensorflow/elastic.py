"""horovod.tensorflow.elastic: states in memory; run() raises an error that names the alternative."""

from sirtaki.tensorflow.elastic import *  # noqa: F403
