"""Backend `sirtaki` of torch.distributed: DistributedDataParallel and collectives over Sirtaki.

torch.distributed.init_process_group("sirtaki")

The backend converts arguments; what runs are the operations of sirtaki.torch. docs/pytorch_distributed.md has a table
of what is there.
"""

from sirtaki.torch.distributed.group import SirtakiGroup
from sirtaki.torch.distributed.meeting import create_group, rendezvous
from sirtaki.torch.distributed.work import SirtakiWork
from sirtaki_backend import register

register()

__all__ = ["SirtakiGroup", "SirtakiWork", "create_group", "register", "rendezvous"]
