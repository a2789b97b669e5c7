"""Rendezvous server of Horovod alone: prints its port, serves until it is terminated.

Run in the interpreter of Horovod: `python -m benchmarks.baselines.horovod_server HOST:SLOTS[,HOST:SLOTS...] SIZE`.
"""

from __future__ import annotations

import ctypes
import signal
import sys

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer


def main(hosts: str, size: str) -> None:
    """Serves one job."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    server = RendezvousServer(verbose=0)
    port = server.start()
    server.init(get_host_assignments(parse_hosts(hosts), int(size)))
    print(port, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
