"""horovod.tensorflow.functions: the broadcasts of variables and objects, which are all in horovod.tensorflow."""

from horovod.tensorflow import *  # noqa: F403
