"""horovod.torch.elastic: what of it works here; run() and TorchState say what to do without."""

from sirtaki.torch.elastic import *  # noqa: F403
