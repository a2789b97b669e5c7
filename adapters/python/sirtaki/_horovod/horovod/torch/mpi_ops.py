"""horovod.torch.mpi_ops: the operations, which are all in horovod.torch."""

from horovod.torch import *  # noqa: F403
