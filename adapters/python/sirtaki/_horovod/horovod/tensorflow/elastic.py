"""horovod.tensorflow.elastic: what of it works here; run() says what to do without."""

from sirtaki.tensorflow.elastic import *  # noqa: F403
