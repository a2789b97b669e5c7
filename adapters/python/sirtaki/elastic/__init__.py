"""Training that goes on in the same processes when ranks are lost or join, with the names of horovod.common.elastic.

Start the job with `sirtakirun --elastic MIN:`. The part for PyTorch is sirtaki.torch.elastic; docs/elastic.md shows it.
"""

from sirtaki.elastic.loop import run, run_fn
from sirtaki.elastic.state import HostsUpdatedInterrupt, ObjectState, State

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "State", "run", "run_fn"]
