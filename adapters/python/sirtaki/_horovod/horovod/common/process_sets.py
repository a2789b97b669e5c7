"""horovod.common.process_sets."""

from sirtaki.process_sets import *  # noqa: F403
