"""Sirtaki for PyTorch, with the names of horovod.torch.

```python
import sirtaki.torch as hvd

hvd.init()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
```
"""

# isort: off
# Imported first: the module explains a torch that is missing or too old.
from sirtaki.torch import _needed_torch as _needed_torch

# isort: on
from sirtaki import HorovodInternalError, __version__
from sirtaki import basics as _basics
from sirtaki import process_sets as _process_sets
from sirtaki._unsupported import missing_attribute as _missing_attribute
from sirtaki.basics import *  # noqa: F403
from sirtaki.local_updates import LocalUpdates, Outer
from sirtaki.process_sets import *  # noqa: F403
from sirtaki.torch import elastic
from sirtaki.torch import ops as _ops
from sirtaki.torch._compile import compile
from sirtaki.torch._reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from sirtaki.torch._sparse_allreduce import sparse_allreduce_async
from sirtaki.torch.compression import Compression, Compressor
from sirtaki.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from sirtaki.torch.ops import *  # noqa: F403
from sirtaki.torch.optimizer import DistributedOptimizer
from sirtaki.torch.schedule import scale_lr
from sirtaki.torch.sync_batch_norm import SyncBatchNorm
from sirtaki_backend import register as _register_backend

_register_backend()

__all__ = [
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalUpdates",
    "Outer",
    "SyncBatchNorm",
    "__version__",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compile",
    "elastic",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
    "scale_lr",
    "sparse_allreduce_async",
]
__all__ += _basics.__all__
__all__ += _process_sets.__all__
__all__ += _ops.__all__


def __getattr__(name: str) -> object:
    raise _missing_attribute(__name__, name)
