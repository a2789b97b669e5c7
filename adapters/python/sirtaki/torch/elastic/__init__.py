"""Elastic training with PyTorch, with the names of horovod.torch.elastic; docs/elastic.md shows it.

run() calls a training function again after the loss of a rank, TorchState holds models, optimizers and more, Training
also keeps batch size and learning rate right, and ElasticSampler deals the samples that are left to the ranks that are
left.
"""

from sirtaki.elastic import HostsUpdatedInterrupt, ObjectState, State, run
from sirtaki.torch.elastic.sampler import ElasticSampler
from sirtaki.torch.elastic.state import TorchState
from sirtaki.torch.elastic.training import Training

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "Training", "run"]
