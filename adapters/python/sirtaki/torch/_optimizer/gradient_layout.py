"""Layout of the gradients of one optimizer, and the collective in which the ranks agree on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sirtaki import _core, basics, errors
from sirtaki.ops import ReduceOp
from sirtaki.torch._adapter import check_kind, describe_memory, is_lazy, wire_type_of
from sirtaki.torch._cuda import open_stream
from sirtaki.torch._optimizer.options import ReducerOptions

_DENSE, _SPARSE = 1, 2  # 0: no gradient yet


@dataclass(frozen=True)
class Layout:
    """Agreed properties of the gradients; lists are by index of the parameter."""

    slots: list[int]  # slot in the stream; -1: combined by name
    sparse: list[bool]
    densified: list[bool]  # sent as dense memory, but sparse before and afterwards
    strides: list[tuple[int, ...]]  # of the send buffer, in elements
    dtypes: list[torch.dtype]
    shapes: list[torch.Size]
    devices: list[torch.device]
    sizes: list[int]  # in elements
    stream: Any
    flag: bool  # some rank has set the flag of StreamOpening
    unequal: list[int]  # parameters that differed between ranks when the opening began

    def matches(self, index: int, param: Tensor) -> bool:
        """Returns True if shape, dtype and device of the parameter are still those agreed."""
        same = param.shape == self.shapes[index] and param.dtype is self.dtypes[index]
        return same and param.device == self.devices[index]

    def send_buffer(self, index: int, grad: Tensor | None) -> Tensor:
        """Returns the memory to send: that of the gradient if the layout is as agreed, else a copy; zeros for None."""
        how: dict[str, Any] = {"dtype": self.dtypes[index], "device": self.devices[index]}
        if grad is None:
            return torch.empty_strided(self.shapes[index], self.strides[index], **how).zero_()
        if grad.stride() == self.strides[index] and grad.dtype is self.dtypes[index] and not is_lazy(grad):
            return grad
        return torch.empty_strided(grad.shape, self.strides[index], **how).copy_(grad)


class StreamOpening:
    """Opens the stream of the dense gradients from those of the first backward. Collective.

    Construction starts the collective. If finish() is interrupted, the collective goes on; call finish() again.
    """

    def __init__(
        self, names: list[str], params: list[Tensor], options: ReducerOptions, ready_order: list[int], flag: bool
    ) -> None:
        """Starts the collective.

        Args:
            names: names of the parameters, the same on all ranks.
            params: the parameters, whose gradients tell which are sparse.
            options: options of the reduction.
            ready_order: indices in the order of their gradients; that of rank 0 becomes the send order.
            flag: a flag whose maximum over the ranks becomes Layout.flag.

        Raises:
            SirtakiError: a parameter cannot be sent; names the parameter.
        """
        _check_kinds(names, params, options)
        self.generation = basics.generation()
        self._names, self._params, self._options = names, params, options
        kind_codes = options.ops.allreduce(
            _encode_facts(params, options, flag),
            f"{options.stream_name}.parameters",
            ReduceOp.MAX,
            (1.0, 1.0),
            in_place=True,
        )
        order = options.ops.broadcast(
            _encode_order(len(params), ready_order),
            options.ops.job_rank(0),
            f"{options.stream_name}.order",
            in_place=True,
        )
        self._facts, self._first_order = options.ops.start([kind_codes, order])

    def finish(self) -> Layout:
        """Returns the layout once all ranks agree. Raises an error of sirtaki.errors if they do not."""
        names, params, options = self._names, self._params, self._options
        found = self._facts.wait()
        count = len(params)
        kind_codes, (first_step, flag_sum) = found[:count].tolist(), found[count : count + 2].tolist()
        # The maximum of a number and of its opposite: they are opposites if all ranks have the same number.
        largest, smallest = found[count + 2 :].view(2, count)
        unequal = torch.nonzero(largest != -smallest).flatten().tolist()
        as_dense = options.sparse_as_dense
        sparse = [kind == _SPARSE and not as_dense for kind in kind_codes]
        densified = [kind == _SPARSE and as_dense for kind in kind_codes]
        order = [i for i in self._first_order.wait().tolist() if not sparse[i] and options.compressor is None]
        dense = sorted(order)
        slots = [-1] * len(params)
        for slot, index in enumerate(dense):
            slots[index] = slot
        strides = [torch.empty_like(p, device="meta").stride() for p in params]
        dtypes, shapes, devices = [p.dtype for p in params], [p.shape for p in params], [p.device for p in params]
        sizes = [p.numel() for p in params]
        if not dense:
            commit: Any = _CommitStream(options)
            return Layout(
                slots, sparse, densified, strides, dtypes, shapes, devices, sizes, commit, flag_sum > 0, unequal
            )
        tensors = [describe_memory(dtypes[i], devices[i], shapes[i], strides[i]) for i in dense]
        how = (int(options.op), options.prescale, options.postscale, options.codec, first_step)
        ranks = options.process_set.wire()
        planned_order = [slots[i] for i in order]
        names_of_dense = [names[i] for i in dense]
        stream = open_stream(
            lambda: _core.Stream(options.stream_name, names_of_dense, tensors, planned_order, how, ranks),
            [devices[i] for i in dense],
        )
        return Layout(slots, sparse, densified, strides, dtypes, shapes, devices, sizes, stream, flag_sum > 0, unequal)


def _check_kinds(names: list[str], params: list[Tensor], options: ReducerOptions) -> None:
    for name, param in zip(names, params, strict=True):
        try:
            check_kind(param)
            wire_type_of(param.dtype, options.op)
        except errors.SirtakiError as error:
            raise type(error)(f"{name}: {error}", basics.rank(), name) from None


def _encode_facts(params: list[Tensor], options: ReducerOptions, flag: bool) -> Tensor:
    """Returns numbers for a maximum over the ranks: kinds, steps made before, `flag`, digests and their opposites."""
    kind_codes = torch.zeros(len(params), dtype=torch.int64, device="cpu")
    for i, param in enumerate(params):
        if param.grad is not None:
            kind_codes[i] = _SPARSE if param.grad.is_sparse else _DENSE
    digests = _digests(params)
    facts = torch.tensor([options.first_step, flag], dtype=torch.int64, device="cpu")
    return torch.cat([kind_codes, facts, digests, -digests])


_PART = 1 << 22
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _sum_of_words(words: Tensor) -> Tensor:
    # In parts: torch casts to int64 before it sums, and memory is scarce at the end of the first backward.
    if words.numel() <= _PART or not words.is_contiguous():
        return words.sum(dtype=torch.int64)
    return torch.stack([part.sum(dtype=torch.int64) for part in words.view(-1).split(_PART)]).sum()


def _digests(params: list[Tensor]) -> Tensor:
    """Returns a digest for each parameter, the sum of its memory as integers; different digests mean different models.

    The digest does not depend on the order of the elements.
    """
    with torch.no_grad():
        parts = [torch.view_as_real(p.detach().resolve_conj()) if p.is_complex() else p.detach() for p in params]
        sums = [_sum_of_words(part.view(_WORDS[part.element_size()])) for part in parts]
        by_device: dict[torch.device, list[int]] = {}
        for i, number in enumerate(sums):
            by_device.setdefault(number.device, []).append(i)
        out = torch.zeros(len(params), dtype=torch.int64, device="cpu")
        for places in by_device.values():
            # One copy for each device, however many parameters it has.
            out[places] = torch.stack([sums[i] for i in places]).to("cpu")
    return out


def _encode_order(count: int, ready_order: list[int]) -> Tensor:
    seen = dict.fromkeys(ready_order)
    rest = [i for i in reversed(range(count)) if i not in seen]
    return torch.tensor([*seen, *rest], dtype=torch.int32, device="cpu")


class _CommitStream:
    """Stream of one number, for gradients that are combined by name: no step ends before all ranks have finished it."""

    def __init__(self, options: ReducerOptions) -> None:
        self._one = torch.zeros(1, dtype=torch.float32, device="cpu")
        tensors = [(0, wire_type_of(torch.float32).code, 0, 0, (1,), (1,))]
        how = (int(options.op), 1.0, 1.0, "none", 0)
        self._stream = _core.Stream(options.stream_name, ["step"], tensors, [0], how, options.process_set.wire())

    def ready(self, slot: int, address: int, absent: bool = False) -> None:
        """Never called: there is no other tensor."""

    def finish(self) -> None:
        """Submits the number, once all gradients of the step exist."""
        self._stream.ready(0, self._one.data_ptr(), False)
        self._stream.finish()

    def wait(self, timeout_ms: int = -1) -> None:
        """Waits until all ranks have finished the step."""
        self._stream.wait(timeout_ms)

    def abort(self, why: str) -> None:
        """Aborts the step on all ranks."""
        self._stream.abort(why)

    def close(self) -> None:
        """Closes the stream."""
        self._stream.close()
