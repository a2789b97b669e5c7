"""horovod.common.exceptions."""

from sirtaki import HorovodInternalError
from sirtaki.elastic import HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
