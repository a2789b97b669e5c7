"""Jobs that torchrun started: its store carries the meeting point and the secret from rank 0 to the others.

The secret stays in memory: it is in no variable, no command line and no file.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """What the C interface needs to know of a job."""

    rank: int
    size: int
    rendezvous: str
    secret: str


_found: dict[str, Job] = {}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def find_job() -> Job | None:
    """The job torchrun has started this process for; None when there is none, or another launcher is in charge."""
    env = os.environ
    if "SIRTAKI_JOB_RANK" in env or "SIRTAKI_JOB_RENDEZVOUS" in env:
        return None
    if not all(name in env for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return None
    rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
    if size == 1:
        return None
    # A worker that torchrun restarts is a new process, and its job a new one.
    key = f"sirtaki/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if key not in _found:
        _found[key] = _meet(key, rank, size, env["MASTER_ADDR"])
    return _found[key]


def _meet(key: str, rank: int, size: int, address: str) -> Job:
    try:
        from torch import distributed
    except ImportError as error:
        raise RuntimeError("RANK, WORLD_SIZE and MASTER_ADDR are set as by torchrun, but torch is missing") from error

    from sirtaki import _core

    store, rank, size = next(iter(distributed.rendezvous("env://", rank, size)))
    if rank == 0:
        port, secret = _core.host(size, "127.0.0.1" if address in _LOOPBACK else "::")
        host = f"[{address}]" if ":" in address else "127.0.0.1" if address == "localhost" else address
        store.set(key, json.dumps([f"{host}:{port}", secret]))
    rendezvous, secret = json.loads(store.get(key))
    return Job(rank, size, rendezvous, secret)
