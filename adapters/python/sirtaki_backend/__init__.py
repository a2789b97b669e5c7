"""Makes `sirtaki` known to torch.distributed, without loading what it needs before somebody asks for it.

torch calls register() when it is imported (entry point group torch.backends), so that an ordinary program needs no
import of ours. Without MASTER_ADDR and MASTER_PORT, which only torchrun sets, torch has no answer to env://, its
default init_method; under sirtakirun, mpirun and srun env:// is answered as sirtaki:// is.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

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
    """Returns true if all ranks of the launcher, and no others, meet by `url`, as far as one rank can tell.

    Processes that a rank starts and joins in a group of their own, such as those of torch.multiprocessing or of a
    torchrun inside, have the variables of that rank, too.
    """
    query = parse_qs(urlsplit(url).query)
    if "SIRTAKI_JOB_RANK" not in os.environ:
        return not query and not any(name in os.environ for name in _TORCHRUN)
    if multiprocessing.parent_process() is not None or "TORCHELASTIC_RUN_ID" in os.environ:
        return False
    asked = (query.get(name.lower(), [os.environ.get(name, "")])[0] for name in ("RANK", "WORLD_SIZE"))
    return tuple(asked) == (os.environ["SIRTAKI_JOB_RANK"], os.environ.get("SIRTAKI_JOB_SIZE"))


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
