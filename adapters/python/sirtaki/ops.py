"""The operations, shared by all frameworks: names, checks, handles. Each framework implements a TensorAdapter.

The runtime uses the memory of an operation until it has finished, so a pending operation keeps its tensors alive even
if the program drops its handle.
"""

from __future__ import annotations

import enum
import operator
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Real
from typing import Any, Protocol

from sirtaki import _core, _growth, basics, errors
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.pump import pump


class ReduceOp(enum.IntEnum):
    """Reductions."""

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    ADASUM = 5


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


#: Priority above bulk data: the default of barriers, objects and operations of up to 64 KiB.
URGENT = -1000
_PRIORITIES = range(-(1 << 31), 1 << 31)


class Op(enum.IntEnum):
    """Kinds of operation."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5


#: (address, dtype, device_type, device_index, dims, strides or None)
Description = tuple[int, int, int, int, Sequence[int], Sequence[int] | None]


class Queue(Protocol):
    """A stream of a GPU, to which a program queues the work that produces and consumes a tensor."""

    @property
    def address(self) -> int:
        """Address of the cudaStream_t."""

    def using(self) -> AbstractContextManager[Any]:
        """Returns a context in which this thread queues its GPU work on this stream."""

    def follow(self) -> None:
        """Makes the current stream wait for the work queued on this stream so far."""


class TensorAdapter(Protocol):
    """Operations on tensors of one framework that Ops needs."""

    def describe(self, tensor: Any, reduce_op: ReduceOp | None = None) -> Description:
        """Returns the description of a row-major tensor, with extra dimensions for the parts of a complex element.

        Raises InvalidArgumentError for a dtype or device that cannot be sent, or not be reduced by `reduce_op`.
        """

    def queue(self, tensor: Any) -> Queue | None:
        """Returns the current stream of the GPU of the tensor; None on the CPU."""

    def input(self, tensor: Any) -> Any:
        """Returns the tensor itself if it is row-major, else a row-major copy. Outside autograd."""

    def overlaps(self, tensor: Any) -> bool:
        """Returns True if several elements share memory (an expanded tensor), so that it cannot be written."""

    def same_memory(self, one: Any, other: Any) -> bool:
        """Returns True if a write to one tensor writes to the other."""

    def empty_like(self, tensor: Any) -> Any:
        """Returns uninitialized row-major memory of the same shape and dtype."""

    def rows_on_gpu(self, like: Any, rows: int) -> Any:
        """Returns uninitialized memory for this many rows of `like` if that is on a GPU; else None."""

    def clone(self, tensor: Any) -> Any:
        """Returns a row-major copy."""

    def copy_back(self, target: Any, source: Any) -> None:
        """Copies `source` into `target`."""

    def item_size(self, tensor: Any) -> int:
        """Returns the bytes of one element of the described memory."""

    def from_result(self, memory: Any, like: Any, dims: Sequence[int]) -> Any:
        """Returns a tensor over memory of the runtime (a byte array, None if empty) with the dtype and rank of `like`.

        `dims` ends with the extra dimensions, if describe() gave any.
        """

    def splits(self, values: Sequence[int]) -> Any:
        """Returns counts as a tensor of int32."""


class _Pending:
    """One operation in flight: its tensors, their stream, and the function that makes its result."""

    __slots__ = ("finish", "queue", "refs", "request")

    def __init__(self, refs: tuple[Any, ...], finish: Callable[[int], Any]) -> None:
        self.request = 0
        self.queue: Queue | None = None
        self.refs = refs
        self.finish = finish


_in_flight: dict[int, _Pending] = {}


class Handle:
    """A started operation. synchronize() or wait() returns its result."""

    __slots__ = ("__weakref__", "_error", "_pending", "_result", "queue")

    def __init__(self, pending: _Pending) -> None:
        #: Stream of its tensor, on a GPU.
        self.queue = pending.queue
        self._pending: _Pending | None = pending
        self._result: Any = None
        self._error: BaseException | None = None

    def poll(self) -> bool:
        """Returns True if wait() would not block."""
        if self._pending is None:
            return True
        try:
            return _core.poll(self._pending.request)
        except errors.NotInitializedError:
            return True

    def wait(self, timeout: float | None = None) -> Any:
        """Returns the result; the same on every call.

        Args:
            timeout: seconds; None waits without limit.

        Raises:
            TimeoutError: the timeout has passed; the operation goes on and may be waited for again.
            HorovodInternalError: the operation failed; the text names operation, rank and tensor.
        """
        pending = self._pending
        if pending is not None:
            self._finish(pending, -1 if timeout is None else max(0, round(timeout * 1000)))
        if self._error is not None:
            raise self._error
        # Each caller may use another stream.
        if self.queue is not None:
            self.queue.follow()
        return self._result

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when the operation is over: from the pump thread, or at once after a wait."""
        pending = self._pending
        if pending is None:
            callback()
        else:
            pump.watch(pending.request, callback)

    def _finish(self, pending: _Pending, timeout_ms: int) -> None:
        request = pending.request
        try:
            _core.wait(request, timeout_ms)
        except errors.DeadlineError as error:
            if not _core.poll(request):
                raise TimeoutError(str(error)) from None
            self._error = error
        except errors.SirtakiError as error:
            # Ctrl-C during a wait is no error of the operation: KeyboardInterrupt passes through.
            self._error = error
        _in_flight.pop(request, None)
        self._pending = None
        if self._error is not None:
            _core.release(request)
            return
        with nullcontext() if pending.queue is None else pending.queue.using():
            self._result = pending.finish(request)

    def __del__(self) -> None:
        pending = self._pending
        if pending is not None:
            _abandon(pending.request)


def _abandon(request: int) -> None:
    """Releases an operation whose handle was dropped, and its tensors, once it is over."""
    if sys.is_finalizing():  # no thread can start any more, and the memory ends with the process
        return

    def forget() -> None:
        _in_flight.pop(request, None)
        _core.release(request)

    try:
        pump.watch(request, forget)
    except Exception:  # the interpreter or the session is ending, and the memory with it
        _in_flight.pop(request, None)


class GroupHandle:
    """Operations that were started together."""

    __slots__ = ("handles",)

    def __init__(self, handles: list[Handle]) -> None:
        self.handles = handles

    def poll(self) -> bool:
        """Returns True if wait() would not block."""
        return all(handle.poll() for handle in self.handles)

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Returns the results in the order of the tensors; `timeout` in seconds for each."""
        return [handle.wait(timeout) for handle in self.handles]

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when all operations are over; see Handle.on_done()."""
        # Callbacks may run in several threads: each removes an entry, the last one finds none.
        left = [None] * (len(self.handles) - 1)

        def one_less() -> None:
            try:
                left.pop()
            except IndexError:
                callback()

        for handle in self.handles:
            handle.on_done(one_less)
        if not self.handles:
            callback()


def _release(result: Any) -> Callable[[int], Any]:
    def finish(request: int) -> Any:
        _core.release(request)
        return result() if callable(result) else result

    return finish


def _refusal(what: str, name: str | None, why: str) -> errors.InvalidArgumentError:
    tensor = "an unnamed tensor" if name is None else f"tensor '{name}'"
    return errors.InvalidArgumentError(f"{what} of {tensor} on rank {basics.rank()}: {why}")


def _with_operation(error: errors.SirtakiError, what: str, name: str | None) -> errors.SirtakiError:
    """Returns the same error with operation, tensor and rank before its text."""
    return type(error)(str(_refusal(what, name, str(error))), error.rank, name)


Submission = tuple[tuple[Any, ...], _Pending]


class Ops:
    """The operations for tensors of one framework. Each method prepares a submission; start() submits.

    Names must be the same on all ranks and unique among operations in flight; without names, the order of calls
    decides.
    """

    def __init__(self, adapter: TensorAdapter, process_set: ProcessSet = global_process_set) -> None:
        self._adapter = adapter
        self._set = process_set

    def within(self, process_set: ProcessSet) -> Ops:
        """Returns the operations among the ranks of a process set."""
        if not isinstance(process_set, ProcessSet):
            raise errors.InvalidArgumentError(f"process_set is {process_set!r}; it must be a ProcessSet")
        return self if process_set is self._set else Ops(self._adapter, process_set)

    def check(self) -> None:
        """Raises InvalidArgumentError for ranks that the job does not have."""
        self._set.wire()

    def size(self) -> int:
        """Returns the number of participating ranks."""
        return self._set.size()

    def rank(self) -> int:
        """Returns the number of this rank among them."""
        return self._set.rank()

    def job_rank(self, place: int) -> int:
        """Returns the rank of the job at an index among them."""
        ranks = self._set.ranks
        if not isinstance(place, Integral) or not 0 <= place < len(ranks):
            raise errors.InvalidArgumentError(f"rank {place!r} does not exist in a group of {len(ranks)}")
        return ranks[int(place)]

    def start(self, submissions: list[Submission], priority: int = 0) -> list[Handle]:
        """Submits all operations or none; they become ready together.

        Operations with a smaller `priority` are sent first, on this rank; 0: URGENT if small, else after all below 0.
        """
        if not isinstance(priority, int) or priority not in _PRIORITIES:
            raise errors.InvalidArgumentError(f"priority is {priority!r}; it must be an integer of 32 bits")
        _growth.check_fresh()
        ranks = self._set.wire()
        requests = _core.submit(
            [(*arguments, self._queue_of(pending), ranks, priority) for arguments, pending in submissions]
        )
        handles = []
        for request, (_, pending) in zip(requests, submissions, strict=True):
            pending.request = request
            _in_flight[request] = pending
            handles.append(Handle(pending))
        return handles

    def _queue_of(self, pending: _Pending) -> int:
        if pending.refs:
            pending.queue = self._adapter.queue(pending.refs[0])
        return 0 if pending.queue is None else pending.queue.address

    def start_one(self, submission: Submission, priority: int = 0) -> Handle:
        """Submits a single operation, see start()."""
        return self.start([submission], priority)[0]

    def allreduce(
        self, tensor: Any, name: str | None, op: ReduceOp, scales: tuple[float, float], in_place: bool
    ) -> Submission:
        """Reduces a tensor of the same shape on all ranks; `scales` multiply before and after."""
        op = check_reduce_op(op)
        source = self._input(tensor, "allreduce", name)
        if in_place:
            self._need_own_memory(tensor, "allreduce", name)
        if not in_place:
            target, result = (self._adapter.empty_like(source),) * 2
        elif self._adapter.same_memory(source, tensor):
            target, result = source, tensor
        else:
            target, result = source, self._write_back(tensor, source)
        arguments = self._arguments(Op.ALLREDUCE, name, source, target, reduce_op=op, scales=scales)
        return arguments, _Pending((tensor, source, target), _release(result))

    def allgather(self, tensor: Any, name: str | None, target: Any = None) -> Submission:
        """Concatenates tensors along dimension 0, which may differ between ranks, in `target` or in new memory."""
        source = self._need_dimension(tensor, "allgather", name)
        arguments = self._arguments(Op.ALLGATHER, name, source, target)
        finish = (lambda request: self._fetch(request, source)[0]) if target is None else _release(target)
        return arguments, _Pending((source, target), finish)

    def broadcast(self, tensor: Any, root_rank: int, name: str | None, in_place: bool) -> Submission:
        """Copies the tensor of the root to all ranks."""
        root_rank = check_root(root_rank, "broadcast", name)
        source = self._input(tensor, "broadcast", name)
        if in_place:
            self._need_own_memory(tensor, "broadcast", name)
        if not in_place:
            source = self._adapter.clone(tensor)
            result = source
        elif self._adapter.same_memory(source, tensor):
            result = tensor
        else:
            result = self._write_back(tensor, source)
        arguments = self._arguments(Op.BROADCAST, name, source, source, root=root_rank)
        return arguments, _Pending((tensor, source), _release(result))

    def alltoall(
        self, tensor: Any, splits: Sequence[int] | None, name: str | None, return_received: bool, target: Any = None
    ) -> Submission:
        """Sends splits[r] rows of dimension 0 to rank r; returns a tensor, or a pair with the rows from each rank."""
        source = self._need_dimension(tensor, "alltoall", name)

        def finish(request: int) -> Any:
            output, received = self._fetch(request, source) if target is None else (target, self._received(request))
            return (output, self._adapter.splits(received or [])) if return_received else output

        arguments = self._arguments(Op.ALLTOALL, name, source, target, splits=splits)
        return arguments, _Pending((source, target), finish)

    def reducescatter(self, tensor: Any, name: str | None, op: ReduceOp, scales: tuple[float, float]) -> Submission:
        """Reduces, then gives each rank its block of dimension 0; the first ranks get one row more if needed."""
        op = check_reduce_op(op)
        source = self._need_dimension(tensor, "reducescatter", name)
        rows, more = divmod(len(source), self.size())
        target = self._adapter.rows_on_gpu(source, rows + (self.rank() < more))
        arguments = self._arguments(Op.REDUCESCATTER, name, source, target, reduce_op=op, scales=scales)
        finish = (lambda request: self._fetch(request, source)[0]) if target is None else _release(target)
        return arguments, _Pending((source, target), finish)

    def barrier(self, name: str | None = None) -> Submission:
        """Synchronizes: the operation is over when all ranks have submitted it."""
        return (int(Op.BARRIER), name, None, None, 0, 0, 1.0, 1.0, None), _Pending((), _release(None))

    def _arguments(
        self,
        op: Op,
        name: str | None,
        source: Any,
        target: Any,
        *,
        reduce_op: ReduceOp | None = None,
        root: int = 0,
        scales: tuple[float, float] = (1.0, 1.0),
        splits: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        try:
            described = self._adapter.describe(source, reduce_op)
        except errors.SirtakiError as error:
            raise _with_operation(error, op.name.lower(), name) from None
        output = (
            None if target is None else described if target is source else self._adapter.describe(target, reduce_op)
        )
        if output is not None and output[0] == 0 and op in (Op.ALLGATHER, Op.ALLTOALL):
            output = (1, *output[1:])  # null would make the runtime allocate the result
        if name is not None and (not isinstance(name, str) or "\0" in name):
            raise errors.InvalidArgumentError(f"name is {name!r}; it must be text, the same on all ranks, or None")
        if not all(type(scale) is float or isinstance(scale, Real) for scale in scales):  # Real takes microseconds
            raise errors.InvalidArgumentError(f"prescale_factor, postscale_factor: {scales}; they must be numbers")
        return (int(op), name, described, output, int(reduce_op or 0), root, float(scales[0]), float(scales[1]), splits)

    def _input(self, tensor: Any, what: str, name: str | None) -> Any:
        try:
            return self._adapter.input(tensor)
        except errors.SirtakiError as error:
            raise _with_operation(error, what, name) from None

    def _need_dimension(self, tensor: Any, what: str, name: str | None) -> Any:
        source = self._input(tensor, what, name)
        if len(source.shape) == 0:
            raise _refusal(what, name, "it needs at least one dimension; reshape it to [1]")
        return source

    def _need_own_memory(self, tensor: Any, what: str, name: str | None) -> None:
        if self._adapter.overlaps(tensor):
            raise _refusal(
                what,
                name,
                "in place, but several of its elements share memory (expand()?); give tensor.clone(), or use the "
                "operation without a final underscore",
            )

    def _fetch(self, request: int, like: Any) -> tuple[Any, list[int] | None]:
        memory, dims, received = _core.result(request, self._adapter.item_size(like), self.size())
        return self._adapter.from_result(memory, like, dims), received

    def _received(self, request: int) -> list[int] | None:
        return _core.result(request, 0, self.size())[2]

    def _write_back(self, target: Any, source: Any) -> Callable[[], Any]:
        def write() -> Any:
            self._adapter.copy_back(target, source)
            return target

        return write


def group_names(name: str | None, count: int) -> list[str | None]:
    """Returns the names of the operations of a group."""
    return [None if name is None else f"{name}.{i}" for i in range(count)]


def check_reduce_op(op: object) -> ReduceOp:
    """Returns `op`, or its number, as ReduceOp. Raises ValueError for other objects."""
    if type(op) is ReduceOp:
        return op
    if not isinstance(op, Integral) or op not in list(ReduceOp):
        raise errors.InvalidArgumentError(f"op is {op!r}; it must be Average, Sum, Min, Max, Product or Adasum")
    return ReduceOp(int(op))


def check_root(root_rank: Any, what: str, name: str | None = None) -> int:
    """Returns `root_rank` as int. Raises ValueError if it is no rank."""
    root = operator.index(root_rank) if hasattr(root_rank, "__index__") else -1
    if not 0 <= root < basics.size():
        raise _refusal(what, name, f"root_rank is {root_rank!r}; ranks are 0 to {basics.size() - 1}")
    return root


def forget_all() -> None:
    """Drops the tensors of all operations, because the session has ended."""
    _in_flight.clear()


basics.on_shutdown(forget_all)
