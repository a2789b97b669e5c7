"""horovod.torch.elastic."""

from sirtaki.torch.elastic import *  # noqa: F403
