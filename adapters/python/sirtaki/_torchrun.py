"""Jobs of torchrun: a store of torch passes the rendezvous address and the secret from rank 0 to the other ranks.

Anyone who reaches the port of the store can read it, because torch asks for no key. So every rank stores the public
half of a key pair (X25519), and rank 0 stores the secret once for each rank, masked with the key that only the two of
them share; the stored values and the traffic reveal nothing. Anyone who can *write* to the store before the ranks do
can impersonate a rank and get the secret: the port must be closed to strangers, as torch requires for its own values.
The secret itself is in no variable, no command line and no file.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from dataclasses import dataclass
from typing import Any

from sirtaki import _core, errors


@dataclass(frozen=True)
class Job:
    """Arguments of the C interface that describe a job."""

    rank: int
    size: int
    rendezvous: str | None
    secret: str | None


_jobs: dict[str, Job] = {}
_keys: list[tuple[str, str]] = []
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def find_job() -> Job | None:
    """Returns the job of a process that torchrun has started; None without torchrun, or under another launcher."""
    env = os.environ
    if "SIRTAKI_JOB_RANK" in env or "SIRTAKI_JOB_RENDEZVOUS" in env:
        return None
    if not all(name in env for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return None
    rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
    if size == 1:
        return None
    # A worker that torchrun restarts is a new process with a new job.
    key = store_key()
    if key not in _jobs:
        _jobs[key] = _meet(key, rank, size, env["MASTER_ADDR"])
    return _jobs[key]


def store_key() -> str:
    """Returns the key of this start of the job in its store."""
    return f"sirtaki/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _meet(key: str, rank: int, size: int, address: str) -> Job:
    try:
        from torch import distributed
    except ImportError as error:
        raise RuntimeError("RANK, WORLD_SIZE and MASTER_ADDR are set as by torchrun, but torch is missing") from error

    store, rank, size = next(iter(distributed.rendezvous("env://", rank, size)))
    return meet_in(store, key, rank, size, address)


def meet_in(store: Any, key: str, rank: int, size: int, address: str) -> Job:
    """Returns the job of the processes that share a store.

    Args:
        store: a torch.distributed.Store.
        key: the key of this start of the job.
        rank: rank of this process.
        size: number of ranks.
        address: address at which the others reach the host of rank 0.

    Raises:
        DeadlineError: a rank has not come to the store.
    """
    if size == 1:
        return Job(rank, size, None, None)
    if rank == 0:
        port, secret = _core.host(size, "127.0.0.1" if address in _LOOPBACK else "::")
        host = f"[{address}]" if ":" in address else "127.0.0.1" if address == "localhost" else address
        _publish(store, key, f"{host}:{port}", secret, size)
        return Job(rank, size, f"{host}:{port}", secret)
    return Job(rank, size, *_receive(store, key, rank))


def _own_keys() -> tuple[str, str]:
    """Returns the key pair of this process, private half first. One for all jobs: a store keeps old values."""
    if not _keys:
        _keys.append(_core.key_pair())
    return _keys[0]


def _mask(secret: str, shared: str, rendezvous: str) -> str:
    """Masks the 32 bytes of a secret with a key that two ranks share; a second call removes the mask."""
    cover = hmac.digest(bytes.fromhex(shared), f"sirtaki secret {rendezvous}".encode(), hashlib.sha256)
    return bytes(a ^ b for a, b in zip(bytes.fromhex(secret), cover, strict=True)).hex()


def _publish(store: Any, key: str, rendezvous: str, secret: str, size: int) -> None:
    own, public = _own_keys()
    store.set(key, json.dumps([rendezvous, public]))
    for rank in range(1, size):
        try:
            theirs = store.get(f"{key}/key/{rank}").decode()
        except Exception as error:
            raise errors.DeadlineError(
                f"rank {rank} of {size} has not come to the store of torch where the ranks meet: {error}. Likely "
                "cause: it failed before init_process_group(), or another version of Sirtaki is installed there",
                rank,
            ) from error
        store.set(f"{key}/secret/{rank}", _mask(secret, _core.shared_key(own, theirs), rendezvous))


def _receive(store: Any, key: str, rank: int) -> tuple[str, str]:
    own, public = _own_keys()
    store.set(f"{key}/key/{rank}", public)
    rendezvous, theirs = json.loads(store.get(key))
    masked = store.get(f"{key}/secret/{rank}").decode()
    return rendezvous, _mask(masked, _core.shared_key(own, theirs), rendezvous)
