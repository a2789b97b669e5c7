"""Makes `sirtaki` known to torch.distributed, without loading what it needs before somebody asks for it.

torch calls register() when it is imported (entry point group torch.backends), so that an ordinary program needs no
import of ours. Ranks of sirtakirun have met, so env://, the default init_method of torch, is answered as sirtaki:// is,
unless the program names a port of its own; under mpirun and srun, if no variable of torchrun is set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sirtaki_backend.own_port import has_own_port

_NAME = "sirtaki"
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_OTHER_LAUNCHERS = ("SIRTAKI_JOB_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def register() -> None:
    """Registers the backend and the init_method sirtaki://. Again: does nothing. torch must be imported."""
    from torch import distributed

    if not distributed.is_available() or hasattr(distributed.Backend, _NAME.upper()):
        return
    distributed.Backend.register_backend(_NAME, _create_group, extended_api=True, devices=["cpu", "cuda"])
    distributed.register_rendezvous_handler(_NAME, _rendezvous)
    if any(name in os.environ for name in _OTHER_LAUNCHERS):
        _handle_env_scheme()


def _create_group(options: Any, backend_options: object) -> Any:
    from sirtaki.torch._ddp.automatic import follow_options
    from sirtaki.torch.distributed import create_group

    group = create_group(options, backend_options)
    follow_options()
    return group


def _rendezvous(url: str, **arguments: Any) -> Iterator[tuple[Any, int, int]]:
    from sirtaki.torch.distributed import rendezvous

    return rendezvous(url, **arguments)


def _is_of_the_job(url: str) -> bool:
    """Returns true if the ranks of the launcher meet by `url`, and false if torch shall find others by its variables.

    Raises:
        ValueError: the ranks of sirtakirun would meet, but rank or size are not those of this rank.
    """
    query = parse_qs(urlsplit(url).query)
    if "SIRTAKI_JOB_RANK" not in os.environ:
        return not query and not any(name in os.environ for name in _TORCHRUN)
    if has_own_port():
        return False
    job = (os.environ["SIRTAKI_JOB_RANK"], os.environ.get("SIRTAKI_JOB_SIZE", ""))
    given = [query.get(name.lower(), [os.environ.get(name, "")])[0] for name in ("RANK", "WORLD_SIZE")]
    asked = tuple(mine if told in ("", "-1") else told for told, mine in zip(given, job, strict=True))
    if asked != job:
        raise ValueError(
            f"init_process_group() is told that this is rank {asked[0]} of {asked[1]}, and sirtakirun has started rank "
            f"{job[0]} of {job[1]}. Give neither rank nor world_size, or start as many ranks; for a group of other "
            "processes, set MASTER_ADDR and MASTER_PORT to an address of their own"
        )
    return True


def _handle_env_scheme() -> None:
    # torch has no public way to replace a scheme. Where this one is gone, env:// asks for MASTER_ADDR as ever, and
    # init_method="sirtaki://" is the way.
    handlers = getattr(sys.modules.get("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
    theirs = handlers.get("env")
    if theirs is None:
        return

    def env(url: str, **arguments: Any) -> Iterator[tuple[Any, int, int]]:
        return _rendezvous(url, **arguments) if _is_of_the_job(url) else theirs(url, **arguments)

    handlers["env"] = env
