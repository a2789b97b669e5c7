"""horovod.torch.elastic.sampler."""

from sirtaki.torch.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
