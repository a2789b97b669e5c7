"""horovod.torch.functions: broadcasts of state and objects, which are all in horovod.torch."""

from horovod.torch import *  # noqa: F403
