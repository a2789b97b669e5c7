"""Life of the session, and facts about ranks; the same for every framework."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from sirtaki import _core, _torchrun, errors
from sirtaki._telemetry.lines import say
from sirtaki._telemetry.logs import LogPipe

#: Functions of Horovod that every adapter re-exports.
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
    """Number of the session, and callbacks for its end."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.generation = 0
        self.first_generation = 0
        self.after_init: list[Any] = []
        self.before_regroup: list[Any] = []
        self.on_regroup: list[Any] = []
        self.loops = 0
        self.on_shutdown: list[Any] = []
        self.before_shutdown: list[Any] = []
        self.before_end: list[Any] = []
        self.add_process_set: Callable[[Any], Any] | None = None
        self.log_pipe: LogPipe | None = None
        #: Last argument of sys.exit() in the main thread; None if the program does not exit.
        self.exit_status: object = None


_state = _SessionState()


def generation() -> int:
    """Returns the number of the current session: 0 before the first init(), one more after each init() or regroup()."""
    return _state.generation


def first_generation() -> int:
    """Returns generation() as of the last init(): regroup() continues the training of the session before."""
    return _state.first_generation


def after_init(callback: Any) -> None:
    """Calls `callback()` when a session has begun. It must not raise."""
    _state.after_init.append(callback)


def before_shutdown(callback: Any) -> None:
    """Calls `callback()` before shutdown() ends the session, but not if the program ends without shutdown()."""
    _state.before_shutdown.append(callback)


def before_end(callback: Any) -> None:
    """Calls `callback()` before the session ends, by shutdown() or with the program. It must not raise or wait."""
    _state.before_end.append(callback)


def on_shutdown(callback: Any) -> None:
    """Calls `callback()` after every shutdown()."""
    _state.on_shutdown.append(callback)


def before_regroup(callback: Any) -> None:
    """Calls `callback()` when the work of a session is given up: by abandon(), and before regroup(). It must not raise.

    It may be called again before the next session has begun.
    """
    _state.before_regroup.append(callback)


def on_regroup(callback: Any) -> None:
    """Calls `callback()` when regroup() has opened a session, after those of on_shutdown(). It must not raise."""
    _state.on_regroup.append(callback)


def set_process_set_adder(add: Callable[[Any], Any]) -> None:
    """Sets the function by which init() adds process sets, because their module imports this one."""
    _state.add_process_set = add


def _is_on(value: object) -> bool:
    """Returns True if the runtime reads `value`, of a Boolean option, as true."""
    return value is True or str(value) in {"true", "yes", "on", "1"}


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

    Rank, size and rendezvous address come from sirtakirun, torchrun, mpirun or srun; without any of them the size is 1.

    Args:
        comm: must be None; use process sets for operations among some ranks.
        process_sets: process sets to add, as add_process_set() does, the same on all ranks; "dynamic" or None: none.
        options: values of options by name, as {"net.interface": "eth1"}; they override every other source. options()
            lists the names.

    Raises:
        ValueError: an option or a variable of the launcher is wrong.
        HorovodInternalError: the ranks cannot meet; the text names absent ranks and the next step.
    """
    if comm is not None:
        raise errors.UnsupportedError("init: comm must be None; use process sets for operations of some of the ranks")
    listed: Any = [] if process_sets is None or process_sets == "dynamic" else process_sets
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
    """Opens the session as init() does, for a known job; None: the environment describes the job."""
    with _state.lock:
        if _is_on(options.get("log.python", option("log.python"))):
            _state.log_pipe = LogPipe()
            options = {**options, **_state.log_pipe.options}
        try:
            if job is None:
                _core.init(_toml(options), 0, 0, None, None)
            else:
                _core.init(_toml(options), job.rank, job.size, job.rendezvous, job.secret)
        except errors.NotInitializedError as error:
            _close_log_pipe()
            if option("elastic.max") == "0" or _state.generation > 0:
                raise  # also in a fork of a process with a session, which cannot have one
            # The job has come to its end while this process waited for the place of a lost rank.
            say(str(error))
            raise SystemExit(0) from None
        except BaseException:
            _close_log_pipe()
            raise
        if is_elastic():
            _watch_exit()
        _state.generation += 1
        _state.first_generation = _state.generation
        for callback in _state.after_init:
            callback()


def is_elastic() -> bool:
    """Returns True if the job goes on without lost ranks (option elastic.min)."""
    return option("elastic.min") != "0"


def abandon() -> None:
    """Gives up steps in flight, because the program goes back to an earlier state. Not collective."""
    for callback in _state.before_regroup:
        callback()


def regroup() -> None:
    """Goes on with other ranks: returns when all survivors have called this, with a new rank() and size().

    In an elastic job the loss of a rank is a RanksChangedError in all others. Ranks that wait to join come in, too, if
    all survivors are in elastic.run(). Operations, handles and process sets of the session before are void; optimizers
    agree on their gradients again in the next step. elastic.run() calls this.

    Raises:
        UnsupportedError: the job is not elastic (option elastic.min).
        PeerLostError: too few ranks are left, or the others have given this one up. No session is open afterwards.
        NotInitializedError: the job has come to its end.
    """
    if not is_elastic():
        raise errors.UnsupportedError("regroup: this job is not elastic; start it with sirtakirun --elastic MIN:")
    abandon()
    open_next_session()


def open_next_session(change: int = 0) -> None:
    """Does the part of regroup() that concerns the runtime, for a change that all ranks have agreed on; 0: for none."""
    with _state.lock:
        try:
            if change:
                _core.regroup_at(change)
            else:
                _core.regroup()
        except errors.SirtakiError:
            if not _core.is_initialized():
                _forget_session()
            raise
        _state.generation += 1
        for callback in [*_state.on_shutdown, *_state.on_regroup]:
            callback()


@contextmanager
def losses_raise() -> Iterator[None]:
    """Returns a context in which a lost rank is an error of each step, since the program goes back to a commit."""
    _state.loops += 1
    try:
        yield
    finally:
        _state.loops -= 1


def in_loop() -> bool:
    """Returns True inside of losses_raise()."""
    return _state.loops > 0


def goes_on_after_losses() -> bool:
    """Returns True if steps survive lost ranks: in an elastic job, outside of losses_raise()."""
    return _state.loops == 0 and is_elastic()


def shutdown() -> None:
    """Leaves the job; pending operations end with HorovodInternalError. Does nothing when not initialized.

    In an elastic job it does nothing while an exception passes: the others take this rank for lost when its process
    ends, and go on, where a good-bye would end the job for all.
    """
    if not _core.is_initialized() or (is_elastic() and sys.exc_info()[1] is not None):
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
        _forget_session()


def _forget_session() -> None:
    _close_log_pipe()
    for callback in list(_state.on_shutdown):
        callback()


def _close_log_pipe() -> None:
    pipe, _state.log_pipe = _state.log_pipe, None
    if pipe is not None:
        pipe.close()


def prepare_end() -> None:
    """Calls the functions of before_end()."""
    for callback in list(_state.before_end):
        callback()


def _at_exit() -> None:
    if not _core.is_initialized():
        return
    try:
        prepare_end()
    finally:
        # Without a good-bye the others of an elastic job take this rank for lost, and go on.
        if not (_ends_by_error() and is_elastic()):
            _close_session()


def _ends_by_error() -> bool:
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    status = _state.exit_status
    bad = status is not None and not (isinstance(status, int) and status == 0)
    return (error is not None or bad) and not hasattr(sys, "ps1")


def _watch_exit() -> None:
    """Records the status that sys.exit() is called with, since no exception remains of it at the end."""
    plain = sys.exit
    if hasattr(plain, "_sirtaki_records"):
        return

    @functools.wraps(plain)
    def recorded(status: Any = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            _state.exit_status = status
        plain(status)

    recorded._sirtaki_records = True  # type: ignore[attr-defined]
    sys.exit = recorded


atexit.register(_at_exit)


def is_initialized() -> bool:
    """Returns True between init() and shutdown(); False in a forked child."""
    return _core.is_initialized()


def _require_initialized(value: int) -> int:
    if value < 0:
        raise errors.NotInitializedError("Sirtaki is not initialized; call init() first")
    return value


def rank() -> int:
    """Returns the number of this rank, 0 to size() - 1. Raises ValueError before init(), like all functions below."""
    return _require_initialized(_core.rank())


def size() -> int:
    """Returns the number of ranks."""
    return _require_initialized(_core.size())


def local_rank() -> int:
    """Returns the number of this rank among the ranks of its host."""
    return _require_initialized(_core.local_rank())


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return _require_initialized(_core.local_size())


def cross_rank() -> int:
    """Returns the index of this host among the hosts that have a rank with this local_rank(), as in Horovod."""
    return _require_initialized(_core.cross_rank())


def cross_size() -> int:
    """Returns the number of hosts that have a rank with this local_rank()."""
    return _require_initialized(_core.cross_size())


def is_homogeneous() -> bool:
    """Returns True if all hosts have the same number of ranks."""
    return _require_initialized(_core.is_homogeneous()) == 1


def options() -> list[dict[str, Any]]:
    """Returns every option: name, value, source, default, help and more; before init() the values it would use."""
    found: list[dict[str, Any]] = json.loads(_core.options_json())
    return found


def option(name: str) -> str:
    """Returns the value of an option as text. Raises ValueError for an unknown name."""
    return str(_option_row(name)["value"])


def option_source(name: str) -> str:
    """Returns the source of the value of an option: "default", "program", a variable, a place in a file."""
    return str(_option_row(name)["source"])


def _option_row(name: str) -> dict[str, Any]:
    for row in options():
        if row["name"] == name:
            return row
    raise errors.InvalidArgumentError(f"there is no option {name}")


def stats() -> dict[str, Any]:
    """Returns counters and times of this rank by name. The end of a name is the unit: _bytes, _us, _ns.

    A counter is a number, a level {value, max}, a distribution {count, sum, mean, p50, p90, p99, max}. "peers" has an
    entry for each other rank. "tensors" has, by stream, a row for each tensor with its codec and the reason, as
    compression_report() of an optimizer. "decisions" has, by stream, the last changes of plan or compression and the
    last decision, with the measurements behind them.
    """
    found: dict[str, Any] = json.loads(_core.stats_json())
    return found


def members() -> list[dict[str, Any]]:
    """Returns {rank, hostname, host_id, pid} of every rank, in rank order."""
    found: list[dict[str, Any]] = json.loads(_core.members_json())
    return found


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts a trace of all ranks for Perfetto or chrome://tracing.

    Args:
        file_path: written on the host of the coordinator: by sirtakirun, else by rank 0. If that fails, the process
            prints an error, and the job goes on.
        mark_cycles: accepted as in Horovod; not used.
    """
    del mark_cycles
    _core.timeline_start(os.fspath(file_path))


def stop_timeline() -> None:
    """Ends the trace and closes its file."""
    _core.timeline_stop()


def mpi_threads_supported() -> bool:
    """Returns False: Sirtaki does not communicate by MPI (mpirun may start the ranks)."""
    return False


def mpi_enabled() -> bool:
    """Returns False, see mpi_threads_supported()."""
    return False


def mpi_built() -> bool:
    """Returns False, see mpi_threads_supported()."""
    return False


def gloo_enabled() -> bool:
    """Returns True: every build has collectives on the CPU."""
    return True


def gloo_built() -> bool:
    """Returns True, see gloo_enabled()."""
    return True


def nccl_built() -> int:
    """Returns the version of NCCL available for GPU tensors, encoded as NCCL does (22809 is 2.28.9); 0 without NCCL.

    NCCL requires the CUDA plug-in, and a library that this process has loaded, as torch with CUDA does, or finds. A
    library that was found stays loaded, so call this after importing the framework. stats()["device.data"] tells
    whether a job uses NCCL.
    """
    return _core.nccl_version()


def ddl_built() -> bool:
    """Returns False: Sirtaki does not use DDL."""
    return False


def ccl_built() -> bool:
    """Returns False: Sirtaki does not use oneCCL."""
    return False


def cuda_built() -> bool:
    """Returns True if the CUDA plug-in is installed, which GPU tensors require."""
    return (Path(_core.__file__).parent / "libsirtaki_cuda.so").exists()


def rocm_built() -> bool:
    """Returns False: AMD GPUs are not supported."""
    return False
