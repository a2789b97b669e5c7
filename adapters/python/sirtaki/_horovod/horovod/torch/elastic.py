"""horovod.torch.elastic: the sampler; run() and TorchState raise an error that names the alternative."""

from sirtaki.torch.elastic import *  # noqa: F403
