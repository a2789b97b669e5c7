"""horovod.common.exceptions."""

from sirtaki import HorovodInternalError

__all__ = ["HorovodInternalError"]
