"""Life of the session and what a rank knows of itself; the same for every framework."""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sirtaki import _core, _torchrun, errors

#: The functions that every adapter re-exports, by the names of Horovod.
__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_core.configure(errors.make_error, threading.main_thread().ident or 0)


class _SessionState:
    """How often a session was opened, and what ends with it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.generation = 0
        self.on_shutdown: list[Any] = []
        self.before_shutdown: list[Any] = []
        self.before_end: list[Any] = []
        self.add_process_set: Callable[[Any], Any] | None = None


_state = _SessionState()


def generation() -> int:
    """Number of the current session, from 1; grows with every init() after a shutdown(). 0 before the first."""
    return _state.generation


def before_shutdown(callback: Any) -> None:
    """Calls `callback()` before the session ends by shutdown(), but not when the program ends without calling it."""
    _state.before_shutdown.append(callback)


def before_end(callback: Any) -> None:
    """Calls `callback()` before the session ends, by shutdown() or with the program. It must not raise or wait."""
    _state.before_end.append(callback)


def on_shutdown(callback: Any) -> None:
    """Calls `callback()` after every shutdown(); for what belongs to one session."""
    _state.on_shutdown.append(callback)


def set_process_set_adder(add: Callable[[Any], Any]) -> None:
    """Sets the function by which init() adds process sets. Process sets are defined above this module."""
    _state.add_process_set = add


def _toml(options: Mapping[str, object]) -> str:
    lines = []
    for name, value in options.items():
        if isinstance(value, (bool, int)):
            lines.append(f"{name} = {json.dumps(value)}")
        else:
            lines.append(f"{name} = {json.dumps(str(value))}")
    return "\n".join(lines) + "\n" if lines else ""


def init(comm: object = None, process_sets: object = None, *, options: Mapping[str, object] | None = None) -> None:
    """Meets the other ranks; returns when all are there. Does nothing while initialized.

    Rank, size and meeting point come from sirtakirun, torchrun, mpirun or srun; without any of them the size is 1.

    Args:
        comm: must be None; process sets are for some of the ranks.
        process_sets: those to add, as add_process_set() does, the same on all ranks; "dynamic" or None: none yet.
        options: values of options by name, {"net.interface": "eth1"}; they win over every other source. `options()`
            lists the names.

    Raises:
        ValueError: an option or a variable of the launcher is wrong.
        HorovodInternalError: the ranks cannot meet; the text says which are absent and what to do.
    """
    if comm is not None:
        raise errors.UnsupportedError("init: comm must be None; use process sets for operations of some of the ranks")
    listed = [] if process_sets is None or process_sets == "dynamic" else process_sets
    well_formed = isinstance(listed, Sequence) and not isinstance(listed, str)
    errors.require(well_formed, f"process_sets is {process_sets!r}; it must be a list of process sets")
    errors.require(options is None or isinstance(options, Mapping), f"options is {options!r}; it must be a mapping")
    with _state.lock:
        if _core.is_initialized():
            return
        open_session(_torchrun.find_job(), options or {})
    if not listed:
        return
    assert _state.add_process_set is not None
    try:
        for one in listed:
            _state.add_process_set(one)
    except errors.SirtakiError:
        shutdown()
        raise


def open_session(job: _torchrun.Job | None, options: Mapping[str, object]) -> None:
    """init() where the caller knows the job better than the environment does; None: it does not."""
    with _state.lock:
        if job is None:
            _core.init(_toml(options), 0, 0, None, None)
        else:
            _core.init(_toml(options), job.rank, job.size, job.rendezvous, job.secret)
        _state.generation += 1


def shutdown() -> None:
    """Leaves in order; pending operations end with HorovodInternalError. Does nothing when not initialized."""
    if not _core.is_initialized():
        return
    try:
        for callback in [*_state.before_shutdown, *_state.before_end]:
            callback()
    finally:
        _close_session()


def _close_session() -> None:
    with _state.lock:
        if not _core.is_initialized():
            return
        _core.shutdown()
        for callback in list(_state.on_shutdown):
            callback()


def _at_exit() -> None:
    if not _core.is_initialized():
        return
    try:
        for callback in list(_state.before_end):
            callback()
    finally:
        _close_session()


atexit.register(_at_exit)


def is_initialized() -> bool:
    """True between init() and shutdown(); False in a forked child."""
    return _core.is_initialized()


def _require_initialized(value: int) -> int:
    if value < 0:
        raise errors.NotInitializedError("Sirtaki is not initialized; call init() first")
    return value


def rank() -> int:
    """Number of this rank, 0 to size() - 1. Raises ValueError when not initialized, as all functions below."""
    return _require_initialized(_core.rank())


def size() -> int:
    """Number of ranks."""
    return _require_initialized(_core.size())


def local_rank() -> int:
    """Place of this rank among those of its host."""
    return _require_initialized(_core.local_rank())


def local_size() -> int:
    """Number of ranks on this host."""
    return _require_initialized(_core.local_size())


def cross_rank() -> int:
    """Index of this rank's host among the hosts that have a rank with this local_rank(), as in Horovod."""
    return _require_initialized(_core.cross_rank())


def cross_size() -> int:
    """Number of hosts that have a rank with this local_rank(): of all where all have as many ranks."""
    return _require_initialized(_core.cross_size())


def is_homogeneous() -> bool:
    """True when all hosts have the same number of ranks."""
    return _require_initialized(_core.is_homogeneous()) == 1


def options() -> list[dict[str, Any]]:
    """Every option: name, value, source, default, help and more. Before init(): what init() would take."""
    found: list[dict[str, Any]] = json.loads(_core.options_json())
    return found


def option(name: str) -> str:
    """The value of one option as text."""
    return str(_option_row(name)["value"])


def option_source(name: str) -> str:
    """Where the value of an option comes from: "default", "program", a variable, a place in a file."""
    return str(_option_row(name)["source"])


def _option_row(name: str) -> dict[str, Any]:
    for row in options():
        if row["name"] == name:
            return row
    raise errors.InvalidArgumentError(f"there is no option {name}")


def stats() -> dict[str, Any]:
    """Counters and times of this rank's session by name, in the unit that a name ends in (_bytes, _us, _ns).

    A counter is a number, a level {value, max}, a distribution {count, sum, mean, p50, p90, p99, max}; "peers" has one
    entry for each other rank; "tensors" has, by stream, a row for each tensor that says how it travels and why, as
    compression_report() of an optimizer; "decisions" has, by stream, the last changes of its plan or compression and
    the last word, with what they follow from.
    """
    found: dict[str, Any] = json.loads(_core.stats_json())
    return found


def members() -> list[dict[str, Any]]:
    """Of every rank, in their order: {rank, hostname, host_id, pid}."""
    found: list[dict[str, Any]] = json.loads(_core.members_json())
    return found


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begins a trace of all ranks for Perfetto or chrome://tracing.

    Args:
        file_path: written where the job's coordinator runs: by sirtakirun, else by rank 0. When it cannot be, that
            process says so, and the job goes on.
        mark_cycles: means nothing here.
    """
    del mark_cycles
    _core.timeline_start(os.fspath(file_path))


def stop_timeline() -> None:
    """Ends the trace and closes its file."""
    _core.timeline_stop()


def mpi_threads_supported() -> bool:
    """False: Sirtaki does not use MPI for communication (mpirun may start the ranks)."""
    return False


def mpi_enabled() -> bool:
    """False, see mpi_threads_supported()."""
    return False


def mpi_built() -> bool:
    """False, see mpi_threads_supported()."""
    return False


def gloo_enabled() -> bool:
    """True: collectives on the CPU are there in every build."""
    return True


def gloo_built() -> bool:
    """True, see gloo_enabled()."""
    return True


def nccl_built() -> int:
    """Version of the NCCL over which tensors on a GPU can go, as it counts: 22809 is 2.28.9; 0 where they cannot.

    That takes the CUDA plug-in, and a library that this process has loaded, as torch's with CUDA does, or finds. What
    is found stays loaded: call it after the framework was imported. Whether a job uses it: stats()["device.data"].
    """
    return _core.nccl_version()


def ddl_built() -> bool:
    """False: a library of Horovod's that is not used here."""
    return False


def ccl_built() -> bool:
    """False: a library of Horovod's that is not used here."""
    return False


def cuda_built() -> bool:
    """The CUDA plug-in is installed, without which tensors on a GPU cannot be sent."""
    return (Path(_core.__file__).parent / "libsirtaki_cuda.so").exists()


def rocm_built() -> bool:
    """False: GPUs of AMD are not used."""
    return False
