"""Makes `sirtaki` known to torch.distributed, without loading what it needs before somebody asks for it.

torch calls register() when it is imported (entry point group torch.backends), so that an ordinary program needs no
import of ours. Launchers that set none of torchrun's variables (sirtakirun, mpirun, srun) leave env://, torch's default
init_method, without an answer; there it is answered as sirtaki:// is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

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


def _handle_env_scheme() -> None:
    # torch has no public way to replace a scheme. Where this one is gone, env:// asks for RANK as ever, and
    # init_method="sirtaki://" is the way.
    handlers = getattr(sys.modules.get("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
    theirs = handlers.get("env")
    if theirs is None:
        return

    def env(url: str, **arguments: Any) -> Iterator[tuple[Any, int, int]]:
        # Rank and size given by the program come as a query.
        given_by_program = "?" in url or any(name in os.environ for name in _TORCHRUN)
        return theirs(url, **arguments) if given_by_program else _rendezvous(url, **arguments)

    handlers["env"] = env
