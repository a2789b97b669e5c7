"""Backend `sirtaki` of torch.distributed: DistributedDataParallel and collectives over Sirtaki.

```python
torch.distributed.init_process_group("sirtaki")
```

The backend converts arguments and runs the operations of sirtaki.torch. docs/pytorch_distributed.md lists the supported
collectives.
"""

import sys
import warnings

from sirtaki.torch.distributed.group import SirtakiGroup
from sirtaki.torch.distributed.meeting import create_group, rendezvous
from sirtaki.torch.distributed.work import SirtakiWork

__all__ = ["SirtakiGroup", "SirtakiWork", "create_group", "rendezvous"]


def __getattr__(name: str) -> object:
    if name == "register":
        warnings.warn(
            "sirtaki.torch.distributed.register is deprecated: importing sirtaki.torch registers the backend; "
            "sirtaki_backend.register() does the same",
            DeprecationWarning,
            stacklevel=2,
        )
        # sirtaki.torch has imported that module. An import here would close a cycle: sirtaki_backend imports this
        # package.
        return sys.modules["sirtaki_backend"].register
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
