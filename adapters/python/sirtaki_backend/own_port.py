"""Tells processes that sirtakirun has started from those that meet on their own; needs no import of `sirtaki`."""

from __future__ import annotations

import os


def has_own_port() -> bool:
    """Returns true if this rank of sirtakirun, or a process that it has started, has set a MASTER_PORT of its own.

    MASTER_ADDR alone, which scripts set to "localhost", leads to no other place: the launcher listens on its port.
    """
    if "SIRTAKI_JOB_RENDEZVOUS" not in os.environ or "MASTER_PORT" not in os.environ:
        return False
    return os.environ["MASTER_PORT"] != os.environ["SIRTAKI_JOB_RENDEZVOUS"].rpartition(":")[2]
