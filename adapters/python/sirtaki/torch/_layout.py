"""What the ranks agree on before gradients are reduced: which are dense, their layout and their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sirtaki import _core, basics, errors
from sirtaki.ops import Ops, ReduceOp
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.torch._adapter import check_kind, described, is_lazy, sent_as, torch_ops
from sirtaki.torch._cuda import CudaStream

_DENSE, _SPARSE = 1, 2  # 0: no gradient yet


@dataclass(frozen=True)
class ReducerOptions:
    """How gradients are combined."""

    stream_name: str
    sync: str  # "backward": done when backward returns; "step": when synchronize() returns
    op: ReduceOp
    mean: bool  # the mean over ranks is what counts, however `op` and the factors make it
    codec: str | None
    compressor: Any  # the program's own, or None; see _own.py
    prescale: float
    postscale: float
    sparse_as_dense: bool
    first_step: int = 0  # steps that the training has made before, as far as this rank knows
    process_set: ProcessSet = global_process_set  # whose gradients are combined; a rank outside it is alone

    @property
    def ops(self) -> Ops:
        """Operations among the ranks that take part."""
        return torch_ops.within(self.process_set)

    @property
    def size(self) -> int:
        """How many ranks combine their gradients with this one's, itself among them."""
        return self.process_set.size() if self.process_set.included() else 1

    @property
    def rank(self) -> int:
        """This rank's place among them."""
        return self.process_set.rank() if self.process_set.included() else 0


@dataclass(frozen=True)
class Layout:
    """By index of the parameters."""

    slots: list[int]  # place in the stream; -1: combined by name
    sparse: list[bool]
    made_dense: list[bool]  # travels as dense memory, and is sparse before and afterwards
    strides: list[tuple[int, ...]]  # of the memory that travels, in elements
    dtypes: list[torch.dtype]
    shapes: list[torch.Size]
    devices: list[torch.device]
    sizes: list[int]  # in elements
    stream: Any
    flag: bool  # some rank has set open_layout()'s

    def fits(self, index: int, param: Tensor) -> bool:
        """The parameter is still what was agreed."""
        same = param.shape == self.shapes[index] and param.dtype is self.dtypes[index]
        return same and param.device == self.devices[index]

    def wire(self, index: int, grad: Tensor | None) -> Tensor:
        """The memory that travels: the gradient's own where it is laid out as agreed; zeros for none."""
        how = {"dtype": self.dtypes[index], "device": self.devices[index]}
        if grad is None:
            return torch.empty_strided(self.shapes[index], self.strides[index], **how).zero_()
        if grad.stride() == self.strides[index] and grad.dtype is self.dtypes[index] and not is_lazy(grad):
            return grad
        return torch.empty_strided(grad.shape, self.strides[index], **how).copy_(grad)


def open_layout(
    names: list[str], params: list[Tensor], options: ReducerOptions, arrivals: list[int], flag: bool
) -> Layout:
    """Opens the stream of the dense gradients. Collective; looks at the gradients of the first backward.

    `arrivals`: parameters in the order in which their gradients became ready; rank 0's counts. `flag`: told to all.
    """
    _check_kinds(names, params, options)
    *kinds, first_step, told = _agree_on_kinds(params, options, flag)
    as_dense = options.sparse_as_dense
    sparse = [kind == _SPARSE and not as_dense for kind in kinds]
    made_dense = [kind == _SPARSE and as_dense for kind in kinds]
    dense = [i for i, other in enumerate(sparse) if not other and options.compressor is None]
    slots = [-1] * len(params)
    for slot, index in enumerate(dense):
        slots[index] = slot
    strides = [torch.empty_like(p, device="meta").stride() for p in params]
    dtypes, shapes, devices = [p.dtype for p in params], [p.shape for p in params], [p.device for p in params]
    sizes = [p.numel() for p in params]
    if not dense:
        return Layout(
            slots, sparse, made_dense, strides, dtypes, shapes, devices, sizes, _CommitStream(options), told > 0
        )
    order = _agree_on_order(dense, slots, options, arrivals)
    tensors = [described(dtypes[i], devices[i], shapes[i], strides[i]) for i in dense]
    how = (int(options.op), options.prescale, options.postscale, options.codec, first_step)
    ranks = options.process_set.wire()
    stream = _core.Stream(options.stream_name, [names[i] for i in dense], tensors, order, how, ranks)
    on_gpu = [devices[i] for i in dense if devices[i].type == "cuda"]
    if on_gpu:
        stream = CudaStream(stream, on_gpu[0])
    return Layout(slots, sparse, made_dense, strides, dtypes, shapes, devices, sizes, stream, told > 0)


def _check_kinds(names: list[str], params: list[Tensor], options: ReducerOptions) -> None:
    for name, param in zip(names, params, strict=True):
        try:
            check_kind(param)
            sent_as(param.dtype, options.op)
        except errors.SirtakiError as error:
            raise type(error)(f"{name}: {error}", basics.rank(), name) from None


def _agree_on_kinds(params: list[Tensor], options: ReducerOptions, flag: bool) -> list[int]:
    """And on the steps made before: the most that any rank knows of."""
    kinds = torch.zeros(len(params) + 2, dtype=torch.int64, device="cpu")
    kinds[-2], kinds[-1] = options.first_step, flag
    for i, param in enumerate(params):
        if param.grad is not None:
            kinds[i] = _SPARSE if param.grad.is_sparse else _DENSE
    name = f"{options.stream_name}.parameters"
    work = options.ops.allreduce(kinds, name, ReduceOp.MAX, (1.0, 1.0), in_place=True)
    return options.ops.start([work])[0].wait().tolist()


def _agree_on_order(dense: list[int], slots: list[int], options: ReducerOptions, arrivals: list[int]) -> list[int]:
    seen = [i for i in dict.fromkeys(arrivals) if slots[i] >= 0]
    known = set(seen)
    rest = [i for i in reversed(dense) if i not in known]
    order = torch.tensor([slots[i] for i in seen + rest], dtype=torch.int32, device="cpu")
    work = options.ops.broadcast(order, options.ops.job_rank(0), f"{options.stream_name}.order", in_place=True)
    return options.ops.start([work])[0].wait().tolist()


class _CommitStream:
    """A stream of one number, where gradients are combined by name: no step ends before all ranks have finished it."""

    def __init__(self, options: ReducerOptions) -> None:
        self._one = torch.zeros(1, dtype=torch.float32, device="cpu")
        tensors = [(0, sent_as(torch.float32).code, 0, 0, (1,), (1,))]
        how = (int(options.op), 1.0, 1.0, "none", 0)
        self._stream = _core.Stream(options.stream_name, ["step"], tensors, [0], how, options.process_set.wire())

    def ready(self, slot: int, address: int, absent: bool = False) -> None:
        """Never called: there is no other tensor."""

    def finish(self) -> None:
        """Every sparse gradient of the step is there."""
        self._stream.ready(0, self._one.data_ptr(), False)
        self._stream.finish()

    def wait(self) -> None:
        """All ranks have finished the step."""
        self._stream.wait()

    def abort(self, why: str) -> None:
        """Gives the step up on all ranks."""
        self._stream.abort(why)

    def close(self) -> None:
        """Ends the stream."""
        self._stream.close()
