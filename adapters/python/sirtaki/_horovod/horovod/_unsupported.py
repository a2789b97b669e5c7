"""Modules and variables of Horovod that Sirtaki does not have, each with its replacement."""

from __future__ import annotations

import importlib.abc
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_PAGE = "docs/horovod.md compares all of it"
_RUN = "start the ranks with sirtakirun, mpirun or srun, or from Python with sirtaki.run()"

MODULES = {
    "horovod.mxnet": "MXNet is not supported; horovod.torch, horovod.tensorflow and horovod.keras are",
    "horovod.spark": f"Spark is not supported; {_RUN}",
    "horovod.ray": f"Ray is not supported; {_RUN}",
    "horovod.data": "use torch.utils.data.DataLoader, which loads in the background with num_workers",
    "horovod.tensorflow.data": "use tf.data, which loads in the background with prefetch()",
}
#: Functions that start a job.
_STARTERS = ("run", "run_commandline")
#: Only some modules of this package exist.
_RUNNER = "horovod.runner."
#: Variables by which launchers of Horovod place a rank; sirtakirun has variables of its own.
_LAUNCHER_VARIABLES = {
    f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
}
#: Replaced by two options.
_STALLS = "HOROVOD_STALL_CHECK_DISABLE"


class _Refusal(importlib.abc.Loader):
    """Refuses to load a module and names the replacement."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Raises ImportError."""
        instead = MODULES.get(spec.name, _RUN)
        raise ImportError(f"{spec.name} under sirtakirun --horovod: {instead} ({_PAGE})", name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Never called."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules that Sirtaki does not have.

    The last finder also finds those of horovod.runner that no other one has found.
    """

    def __init__(self, last: bool) -> None:
        self._last = last

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns a spec whose loader refuses."""
        refused = fullname in MODULES or (self._last and fullname.startswith(_RUNNER))
        return ModuleSpec(fullname, _Refusal(), is_package=True) if refused else None


def refuse_modules() -> None:
    """Makes imports of missing modules raise an error that names the replacement."""
    sys.meta_path.insert(0, _Finder(last=False))
    sys.meta_path.append(_Finder(last=True))


def missing(module: str, name: str) -> Exception:
    """Returns the error about a name that a module does not have.

    For functions that start a job it is an ImportError: `from module import name` drops the text of an AttributeError.
    """
    text = f"module '{module}' of Sirtaki has no attribute '{name}'"
    if name in _STARTERS:
        return ImportError(f"{text}; {_RUN} ({_PAGE})", name=module)
    return AttributeError(f"{text}; {_PAGE}")


def ignored(environment: Mapping[str, str], understood: set[str]) -> list[str]:
    """Returns the variables of Horovod that are set and not used."""
    return sorted(
        n for n in environment if n.startswith("HOROVOD_") and n not in understood | _LAUNCHER_VARIABLES | {_STALLS}
    )


def warn_ignored_variables() -> None:
    """Prints, once in a job and on rank 0, the variables of Horovod that are set and not used."""
    helper = multiprocessing.parent_process() is not None  # a worker of a data loader
    if helper or os.environ.get("SIRTAKI_JOB_RANK", "0") != "0":
        return
    from sirtaki import options

    names = ignored(os.environ, {row["horovod"] for row in options()})
    if names:
        print(f"sirtaki: {', '.join(names)}: no option means this here, so it is not used ({_PAGE})", file=sys.stderr)
