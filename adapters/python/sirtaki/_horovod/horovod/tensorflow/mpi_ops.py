"""horovod.tensorflow.mpi_ops: the operations, which are all in horovod.tensorflow."""

from horovod.tensorflow import *  # noqa: F403
