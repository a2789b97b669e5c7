"""horovod.common.process_sets."""

from sirtaki.torch import ProcessSet, global_process_set

__all__ = ["ProcessSet", "global_process_set"]
