"""Jobs that torch knows of: a store of torch's carries the meeting point and the secret from rank 0 to the others.

The secret stays in memory: it is in no variable, no command line and no file.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """What the C interface needs to know of a job."""

    rank: int
    size: int
    rendezvous: str | None
    secret: str | None


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
    key = store_key()
    if key not in _found:
        _found[key] = _meet(key, rank, size, env["MASTER_ADDR"])
    return _found[key]


def store_key() -> str:
    """Under which the meeting point of this start of the job lies in its store."""
    return f"sirtaki/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _meet(key: str, rank: int, size: int, address: str) -> Job:
    try:
        from torch import distributed
    except ImportError as error:
        raise RuntimeError("RANK, WORLD_SIZE and MASTER_ADDR are set as by torchrun, but torch is missing") from error

    store, rank, size = next(iter(distributed.rendezvous("env://", rank, size)))
    return meet_in(store, key, rank, size, address)


def meet_in(store: Any, key: str, rank: int, size: int, address: str) -> Job:
    """The job of those who share `store`, a torch.distributed.Store; `address` is how they reach rank 0's host."""
    from sirtaki import _core

    if size == 1:
        return Job(rank, size, None, None)
    if rank == 0:
        port, secret = _core.host(size, "127.0.0.1" if address in _LOOPBACK else "::")
        host = f"[{address}]" if ":" in address else "127.0.0.1" if address == "localhost" else address
        store.set(key, json.dumps([f"{host}:{port}", secret]))
    rendezvous, secret = json.loads(store.get(key))
    return Job(rank, size, rendezvous, secret)
