"""ProcessGroup of all or some ranks for torch.distributed.

Collectives are paired by the order of calls on the group, as torch requires: the number of a call in that order, modulo
a window, is its name. Names repeat, so that the ranks need not agree on new ones in every step.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from sirtaki import errors
from sirtaki._unused_options import warn_in_backward
from sirtaki.errors import InvalidArgumentError, require
from sirtaki.ops import GroupHandle, Ops, Submission
from sirtaki.process_sets import ProcessSet
from sirtaki.pump import pump
from sirtaki.torch._sparse_allreduce import sparse_parts
from sirtaki.torch.distributed import convert
from sirtaki.torch.distributed.work import Call, SirtakiWork, WriteOutputs

#: Calls of a group that can be in flight; the next one waits for the oldest.
WINDOW = 32

_UNSCALED = (1.0, 1.0)


class _CallOrder:
    """Calls that are paired by their order: collectives of a group, or messages of one tag between two ranks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0
        self.window: list[weakref.ref[Call] | None] = [None] * WINDOW


class _CallSlot(NamedTuple):
    order: _CallOrder
    name: str
    label: str  # for errors
    timeout: float  # seconds


@convert.no_compile
class SirtakiGroup(ProcessGroup):
    """Process group of the ranks of `ops`, in their order, with the methods of torch.

    Raises InvalidArgumentError (a ValueError) for a mistake found on this rank alone, UnsupportedError (a
    NotImplementedError) for missing features. Failures that concern several ranks are raised by the work.
    """

    def __init__(self, ops: Ops, name: str, timeout: timedelta) -> None:
        super().__init__(ops.rank(), ops.size())
        self._ops = ops
        self._rank = ops.rank()
        self._size = ops.size()
        self._name = name
        self._description = ""
        self._timeout = convert.seconds(timeout)
        self._collectives: _CallOrder | None = None  # created late, because torch may rename the group
        self._messages: dict[tuple[int, int, int], _CallOrder] = {}  # by sender, receiver, tag
        self._on_shutdown: Any = None

    # ---- what torch asks about a group; most are names of its C++ ----

    def getBackendName(self) -> str:  # noqa: N802
        """Returns "sirtaki"."""
        return "sirtaki"

    @property
    def _device_types(self) -> list[torch.device]:
        """Devices of supported tensors; libraries of torch ask for them, and put objects on the CPU if it is one."""
        return [torch.device("cpu"), torch.device("cuda")]

    #: Features of a backend; torch asks that of CUDA for them if `device_id` is given.
    supports_splitting = supports_coalescing = supports_time_estimate = False

    def _get_backend(self, device: torch.device) -> SirtakiGroup:
        """Returns the group, which is the backend of both kinds of devices. Raises RuntimeError for other kinds."""
        if torch.device(device).type not in ("cpu", "cuda"):
            raise RuntimeError(f"backend sirtaki has no tensors on {device}, but those of CPUs and CUDA GPUs")
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Returns False: torch allocates the tensors of FSDP."""
        del device
        return False

    def getGroupName(self) -> str:  # noqa: N802
        """Returns the name that torch gave the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Sets the name; called by torch once."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Returns the description that torch gave the group."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Sets the description; called by torch once."""
        self._description = description

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later calls."""
        self._timeout = convert.seconds(timeout)

    @property
    def timeout_seconds(self) -> float:
        """Seconds that calls without a timeout of their own may take."""
        return self._timeout

    def call_at_shutdown(self, callback: Any) -> None:
        """Calls `callback()` once when the group is destroyed."""
        self._on_shutdown = callback

    def shutdown(self) -> None:
        """Ends the group; called by destroy_process_group()."""
        callback, self._on_shutdown = self._on_shutdown, None
        if callback is not None:
            callback()

    def abort(self) -> None:
        """Ends the group as shutdown() does."""
        self.shutdown()

    # ---- all ranks get the same ----

    def allreduce(self, tensors: Tensor | Sequence[Tensor], opts: Any = None) -> SirtakiWork:
        """Reduces a tensor of every rank in place; dense tensors and sparse COO tensors."""
        what = "all_reduce"
        tensor, op = convert.single(tensors, what), convert.reduce_op(opts, what)
        place = self._begin(what, opts)
        if tensor.layout is torch.sparse_coo:
            parts, finish = sparse_parts(self._ops, tensor, place.name, op)
            return self._start(place, parts, lambda results: [tensor.copy_(finish(results))])
        return self._start(place, [self._ops.allreduce(tensor, place.name, op, _UNSCALED, in_place=True)], list)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> SirtakiWork:
        """Reduces several tensors in place that become ready together."""
        op = convert.reduce_op(opts, "all_reduce_coalesced")
        place = self._begin("all_reduce_coalesced", opts)
        pairs = zip(tensors, convert.names(place.name, tensors), strict=True)
        work = [self._ops.allreduce(tensor, part, op, _UNSCALED, in_place=True) for tensor, part in pairs]
        return self._start(place, work, list)

    def broadcast(self, tensors: Tensor | Sequence[Tensor], opts: Any = None) -> SirtakiWork:
        """Overwrites a tensor with that of opts.rootRank."""
        tensor = convert.single(tensors, "broadcast")
        place = self._begin("broadcast", opts)
        root = self._ops.job_rank(0 if opts is None else getattr(opts, "rootRank", opts))
        return self._start(place, [self._ops.broadcast(tensor, root, place.name, in_place=True)], list)

    def allgather(self, outputs: Sequence[Any], inputs: Tensor | Sequence[Tensor], opts: Any = None) -> SirtakiWork:
        """Gathers the tensor of rank r into `outputs[0][r]`; sizes may differ, if outputs of all ranks say so."""
        what = "all_gather"
        source, targets = convert.single(inputs, what), outputs if isinstance(outputs[0], Tensor) else outputs[0]
        self._check_outputs(what, targets, source)
        place = self._begin(what, opts)
        memory = convert.result_memory(targets, source)
        work = [self._ops.allgather(convert.flat(source), place.name, memory)]
        return self._start(place, work, self._gathered(targets))

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> SirtakiWork:
        """Gathers the tensors of all ranks into `output`, one after another."""
        return self.all_gather_single_coalesced([output], [source], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> SirtakiWork:
        """Runs all_gather_single() for several tensors that become ready together."""
        what = "all_gather_into_tensor"
        for output, source in zip(outputs, inputs, strict=True):
            self._check_sizes(what, output.numel() == source.numel() * self._size, output, source, "P times")
        place = self._begin(what, opts)
        parts = zip(outputs, inputs, convert.names(place.name, inputs), strict=True)
        work = [
            self._ops.allgather(
                convert.flat(source), part, convert.result_memory([output], source, self._rank * source.numel())
            )
            for output, source, part in parts
        ]
        return self._start(place, work, lambda results: self._copied(outputs, results))

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> SirtakiWork:
        """Gathers `inputs[i]` of rank r into `outputs[r][i]`."""
        what = "all_gather_coalesced"
        by_tensor = [list(targets) for targets in zip(*outputs, strict=True)]
        for targets, source in zip(by_tensor, inputs, strict=True):
            self._check_outputs(what, targets, source)
        place = self._begin(what, opts)
        parts = zip(by_tensor, inputs, convert.names(place.name, inputs), strict=True)
        work = [
            self._ops.allgather(convert.flat(source), part, convert.result_memory(targets, source))
            for targets, source, part in parts
        ]
        deliver = [self._gathered(targets) for targets in by_tensor]
        return self._start(
            place,
            work,
            lambda results: [t for fill, result in zip(deliver, results, strict=True) for t in fill([result])],
        )

    def barrier(self, opts: Any = None) -> SirtakiWork:
        """Starts a barrier, which is done when all ranks have called it."""
        place = self._begin("barrier", opts)
        return self._start(place, [self._ops.barrier(place.name)], lambda _: [])

    # ---- each rank gets its part ----

    def reduce_scatter(
        self, outputs: Tensor | Sequence[Tensor], inputs: Sequence[Any], opts: Any = None
    ) -> SirtakiWork:
        """Reduces `inputs[0][r]` of all ranks onto rank r; all have the same size."""
        what = "reduce_scatter"
        output, parts = convert.single(outputs, what), inputs if isinstance(inputs[0], Tensor) else inputs[0]
        self._check_outputs(what, parts, output)
        for part in parts:
            self._check_sizes(what, part.numel() == output.numel(), output, part, "exactly")
        return self._reduce_scatter(what, [output], [convert.concatenated(parts)], opts)

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> SirtakiWork:
        """Reduces `source` of all ranks and writes the part of this rank to `output`."""
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> SirtakiWork:
        """Runs reduce_scatter_single() for several tensors that become ready together."""
        what = "reduce_scatter_tensor"
        for output, source in zip(outputs, inputs, strict=True):
            self._check_sizes(what, source.numel() == output.numel() * self._size, source, output, "P times")
        return self._reduce_scatter(what, outputs, [convert.flat(source) for source in inputs], opts)

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> SirtakiWork:
        """Writes the tensor that rank r has for this rank to `outputs[r]`; sizes may differ."""
        what = "all_to_all"
        require(len(inputs) == self._size == len(outputs), f"{what}: it needs one input and one output for each rank")
        sends, receives = [t.numel() for t in inputs], [t.numel() for t in outputs]
        return self._alltoall(what, convert.concatenated(inputs), (sends, receives), outputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> SirtakiWork:
        """Sends input_splits[r] rows of `source` to rank r and receives into `output`; no splits: equal parts."""
        what = "all_to_all_single"
        sends = self._element_counts(what, source, input_splits, "input")
        receives = self._element_counts(what, output, output_splits, "output")
        return self._alltoall(what, convert.flat(source), (sends, receives), [output], opts)

    # ---- one rank gives or gets ----

    def gather(self, outputs: Sequence[Any], inputs: Tensor | Sequence[Tensor], opts: Any = None) -> SirtakiWork:
        """Gathers the tensor of rank r into `outputs[0][r]` on opts.rootRank; the other ranks only send."""
        what = "gather"
        source, root = convert.single(inputs, what), opts.rootRank
        targets: Sequence[Tensor] = outputs[0] if outputs and self._rank == root else []
        if self._rank == root:
            self._check_outputs(what, targets, source)
        sends = [source.numel() if rank == root else 0 for rank in range(self._size)]
        receives = [target.numel() for target in targets] or [0] * self._size
        return self._alltoall(what, convert.flat(source), (sends, receives), targets, opts)

    def scatter(self, outputs: Tensor | Sequence[Tensor], inputs: Sequence[Any], opts: Any = None) -> SirtakiWork:
        """Writes the tensor that opts.rootRank has for this rank in `inputs[0]` to `outputs`."""
        what = "scatter"
        output, root = convert.single(outputs, what), opts.rootRank
        parts: Sequence[Tensor] = inputs[0] if self._rank == root else []
        if self._rank == root:
            self._check_outputs(what, parts, output)
        source = convert.concatenated(parts) if parts else convert.flat(output)[:0]
        sends = [part.numel() for part in parts] or [0] * self._size
        receives = [output.numel() if rank == root else 0 for rank in range(self._size)]
        return self._alltoall(what, source, (sends, receives), [output], opts)

    def reduce(self, tensors: Tensor | Sequence[Tensor], opts: Any = None) -> SirtakiWork:
        """Reduces a tensor of every rank, in place on opts.rootRank; costs as much as allreduce()."""
        tensor, op = convert.single(tensors, "reduce"), convert.reduce_op(opts, "reduce")
        place = self._begin("reduce", opts)
        here = self._rank == opts.rootRank
        return self._start(place, [self._ops.allreduce(tensor, place.name, op, _UNSCALED, in_place=here)], list)

    # ---- from one rank to another ----

    def send(self, tensors: Tensor | Sequence[Tensor], rank: int, tag: int = 0) -> SirtakiWork:
        """Sends a tensor to a rank; the work may take until that rank receives it."""
        what = f"send to rank {rank}"
        source = convert.flat(convert.single(tensors, what))
        return self._message(what, (self._rank, rank, tag), source, lambda _: [])

    def recv(self, tensors: Tensor | Sequence[Tensor], rank: int, tag: int = 0) -> SirtakiWork:
        """Receives a tensor with as many elements that a rank sends with this tag."""
        what = f"recv from rank {rank}"
        target = convert.single(tensors, what)
        memory = convert.flat(target)
        own = memory.data_ptr() == target.data_ptr()

        def deliver(_: list[Any]) -> list[Tensor]:
            return [target] if own else [convert.copy(target, memory)]

        return self._message(what, (rank, self._rank, tag), memory, deliver)

    def recv_anysource(self, tensors: Any, tag: int) -> SirtakiWork:
        """Refused: a message needs its sender."""
        del tensors, tag
        raise errors.UnsupportedError(
            f"recv on rank {self._rank}: backend sirtaki needs the sender of a message; give src. A Gloo group beside "
            'this one takes any sender: torch.distributed.new_group(backend="gloo")'
        )

    # Names in older versions of torch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ---- what they have in common ----

    def _begin(self, what: str, opts: Any, order: _CallOrder | None = None) -> _CallSlot:
        """Returns the next slot in the order of calls. Only _start() takes it, so a refused call takes none."""
        if order is None:
            order = self._collectives = self._collectives or _CallOrder(f"torch.{self._name}")
        number = order.calls
        label = f"{what} (call {number} of group '{self._name}' on rank {self._rank})"
        if pump.is_current():
            raise errors.UnsupportedError(
                f"{label}: it was called by a callback of a future. Ranks may run those in different orders, so a "
                "collective there can meet another one; wait for the future where it was made, or let a communication "
                "hook start one collective only. sirtaki.torch.DistributedOptimizer has PowerSGD as "
                'compression="powersgd"'
            )
        given = getattr(opts, "timeout", None)
        # A negative timeout of torch means "not given".
        timeout = convert.seconds(given) if isinstance(given, timedelta) and given > timedelta(0) else self._timeout
        before = order.window[number % WINDOW]
        call = None if before is None else before()
        if call is not None and not call.finished:
            try:
                call.finish(timeout)
            except Exception:
                if not call.finished:
                    raise
                # Its own work raises the error.
        return _CallSlot(order, f"{order.name}.{number % WINDOW}", label, timeout)

    def _start(
        self, place: _CallSlot, work: list[Submission], deliver: WriteOutputs, among: Ops | None = None
    ) -> SirtakiWork:
        convert.require_memory(place.label, [tensor for _, pending in work for tensor in pending.refs])
        if torch._C._current_graph_task_id() >= 0:
            warn_in_backward()
        handles = (among or self._ops).start(work) if work else []
        call = Call(place.label, GroupHandle(handles), deliver, place.timeout)
        order = place.order
        order.window[order.calls % WINDOW] = weakref.ref(call)
        order.calls += 1
        return SirtakiWork(call)

    def _message(self, what: str, endpoints: tuple[int, int, int], flat: Tensor, deliver: WriteOutputs) -> SirtakiWork:
        """Sends elements by a broadcast between two ranks, from `flat` on the sender into `flat` on the receiver."""
        sender, receiver, tag = endpoints
        peer = receiver if sender == self._rank else sender
        require(peer != self._rank, f"{what} on rank {self._rank}: a message goes to another rank")
        ranks = [self._ops.job_rank(rank) for rank in (sender, receiver)]
        among = self._ops.within(ProcessSet(ranks))
        order = self._messages.setdefault(endpoints, _CallOrder(f"torch.{self._name}.{sender}>{receiver}.{tag}"))
        place = self._begin(what, None, order)
        return self._start(place, [among.broadcast(flat, ranks[0], place.name, in_place=True)], deliver, among)

    def _reduce_scatter(self, what: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any) -> SirtakiWork:
        op = convert.reduce_op(opts, what)
        place = self._begin(what, opts)
        pairs = zip(inputs, convert.names(place.name, inputs), strict=True)
        work = [self._ops.reducescatter(flat, part, op, _UNSCALED) for flat, part in pairs]
        return self._start(place, work, lambda results: self._copied(outputs, results))

    def _alltoall(
        self, what: str, source: Tensor, counts: tuple[list[int], list[int]], targets: Sequence[Tensor], opts: Any
    ) -> SirtakiWork:
        sends, receives = counts
        convert.require_memory(f"{what} on rank {self._rank}", (source, *targets))
        place = self._begin(what, opts)

        def deliver(results: list[Any]) -> list[Tensor]:
            concatenated, received = results[0]
            for rank, (came, expected) in enumerate(zip(received.tolist(), receives, strict=True)):
                require(
                    came == expected,
                    f"rank {rank} sent {came} elements to rank {self._rank}, whose output for it holds {expected}",
                )
            return convert.split_into(targets, concatenated)

        memory = convert.result_memory(targets, source)
        work = [self._ops.alltoall(source, sends, place.name, return_received=True, target=memory)]
        return self._start(place, work, deliver)

    def _gathered(self, targets: Sequence[Tensor]) -> WriteOutputs:
        def deliver(results: list[Any]) -> list[Tensor]:
            expected = sum(target.numel() for target in targets)
            require(
                results[0].numel() == expected,
                f"the outputs hold {expected} elements, and the ranks sent {results[0].numel()}; each output must be "
                "as large as the tensor of its rank",
            )
            return convert.split_into(targets, results[0])

        return deliver

    def _copied(self, outputs: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
        return [convert.copy(output, result) for output, result in zip(outputs, results, strict=True)]

    def _element_counts(self, what: str, tensor: Tensor, splits: Sequence[int], which: str) -> list[int]:
        rows = tensor.shape[0] if tensor.dim() > 0 else 0
        if not splits:
            require(
                rows % self._size == 0,
                f"{what} on rank {self._rank}: {rows} rows of the {which} do not divide by {self._size} ranks; give "
                f"{which}_split_sizes",
            )
            return [tensor.numel() // self._size] * self._size
        require(
            len(splits) == self._size and sum(splits) == rows and min(splits) >= 0,
            f"{what} on rank {self._rank}: {which}_split_sizes is {list(splits)}; it must be {self._size} counts whose "
            f"sum is {rows}, the rows of the {which}",
        )
        return [count * (tensor.numel() // rows if rows else 0) for count in splits]

    def _check_outputs(self, what: str, tensors: Sequence[Tensor], own: Tensor) -> None:
        require(
            len(tensors) == self._size,
            f"{what} on rank {self._rank}: it needs one tensor for each of {self._size} ranks, not {len(tensors)}",
        )
        self._check_sizes(what, tensors[self._rank].numel() == own.numel(), tensors[self._rank], own, "exactly")

    def _check_sizes(self, what: str, fits: bool, one: Tensor, other: Tensor, how: str) -> None:
        convert.require_memory(f"{what} on rank {self._rank}", (one, other))
        if not fits:
            raise InvalidArgumentError(
                f"{what} on rank {self._rank}: tensors of {list(one.shape)} and {list(other.shape)} do not fit; the "
                f"first must hold {how.replace('P times', f'{self._size} times')} as many elements as the second"
            )
