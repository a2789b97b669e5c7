"""Describes torch tensors to the runtime by address, dtype, device and shape; uses no C++ of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sirtaki import errors
from sirtaki._dtypes import WIRE_TYPES, WireType, wire_type
from sirtaki.ops import Description, Ops, ReduceOp
from sirtaki.torch._cuda import CudaQueue, device_id

#: Wire type of each torch dtype.
DTYPES: dict[torch.dtype, WireType] = {
    getattr(torch, name): wire for name, wire in WIRE_TYPES.items() if hasattr(torch, name)
}


def wire_type_of(dtype: torch.dtype, reduce_op: ReduceOp | None = None) -> WireType:
    """Returns the wire type of a dtype.

    Args:
        dtype: dtype of the tensor.
        reduce_op: the reduction to be applied; None for operations that only move data.

    Raises:
        InvalidArgumentError: the runtime can neither move nor reduce such elements.
    """
    how = DTYPES.get(dtype)
    if how is not None and (how.reduce_ops is None or reduce_op is None):
        return how
    return wire_type(str(dtype).removeprefix("torch."), None if reduce_op is None else reduce_op.name)


def describe_memory(
    dtype: torch.dtype, device: torch.device, shape: Sequence[int], strides: Sequence[int], address: int = 0
) -> Description:
    """Returns the description of a dense tensor whose elements the runtime sums, such as a gradient.

    A complex tensor is described as pairs of real numbers.

    Args:
        dtype: dtype of the tensor.
        device: CPU or a CUDA GPU.
        shape: its dimensions.
        strides: its strides, in elements; any order of the dimensions.
        address: address of the first element; 0 for a description without memory.

    Raises:
        InvalidArgumentError: the runtime cannot sum this dtype.
    """
    how = wire_type_of(dtype, ReduceOp.SUM)
    if how.extra:
        shape, strides = (*shape, *how.extra), (*(2 * stride for stride in strides), 1)
    return (address, how.code, *device_id(device), shape, strides)


def real_count(tensor: Tensor) -> int:
    """Returns the number of real numbers in a tensor; a complex element counts as two."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def is_lazy(tensor: Tensor) -> bool:
    """Returns True for a negated or conjugated view, as some gradients are: its memory holds other values."""
    return tensor.is_neg() or tensor.is_conj()


def check_kind(tensor: Any) -> None:
    """Requires a dense tensor on the CPU or on a CUDA GPU.

    Raises:
        InvalidArgumentError: `tensor` is no tensor, or a sparse one.
        UnsupportedError: the tensor is on another kind of device.
    """
    if not isinstance(tensor, Tensor):
        raise errors.InvalidArgumentError(f"expected a torch.Tensor, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise errors.InvalidArgumentError(
            "sparse tensors cannot be sent as they are; use sparse_allreduce_async() or to_dense()"
        )
    if not (tensor.is_cpu or tensor.is_cuda):
        raise errors.UnsupportedError(
            f"memory of CPUs and CUDA GPUs can be sent, and the tensor is on {tensor.device}; copy it with .cpu() first"
        )


class TorchAdapter:
    """Implements sirtaki.ops.TensorAdapter for torch tensors."""

    def describe(self, tensor: Tensor, reduce_op: ReduceOp | None = None) -> Description:
        """Returns the description of a row-major tensor."""
        how = wire_type_of(tensor.dtype, reduce_op)
        dims = (*tensor.shape, *how.extra) if how.extra else tensor.shape
        return (tensor.data_ptr(), how.code, *device_id(tensor.device), dims, None)

    def queue(self, tensor: Tensor) -> CudaQueue | None:
        """Returns the current stream of the GPU of the tensor; None on the CPU."""
        return CudaQueue(tensor.device) if tensor.is_cuda else None

    def input(self, tensor: Tensor) -> Tensor:
        """Returns the tensor itself, detached, if it is row-major, else a row-major copy."""
        check_kind(tensor)
        # The alias keeps the memory if the program gives the tensor another one (tensor.data = ...).
        # Memory of a lazy view holds other values than the view, see is_lazy().
        return tensor.detach().resolve_neg().resolve_conj().contiguous()

    def overlaps(self, tensor: Tensor) -> bool:
        """Returns True if several elements share memory."""
        if tensor.is_contiguous():
            return False
        pairs = zip(tensor.stride(), tensor.shape, strict=True)
        return tensor.numel() > 1 and any(stride == 0 and length > 1 for stride, length in pairs)

    def same_memory(self, one: Tensor, other: Tensor) -> bool:
        """Returns True if a write to one tensor writes to the other."""
        return one.data_ptr() == other.data_ptr()

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Returns uninitialized row-major memory of the same shape, dtype and device."""
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)

    def rows_on_gpu(self, like: Tensor, rows: int) -> Tensor | None:
        """Returns uninitialized memory for this many rows of `like` if that is on a GPU; else None."""
        return like.new_empty((rows, *like.shape[1:])) if like.is_cuda else None

    def clone(self, tensor: Tensor) -> Tensor:
        """Returns a row-major copy, detached."""
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    def copy_back(self, target: Tensor, source: Tensor) -> None:
        """Copies `source` into `target`, outside autograd."""
        target.detach().copy_(source)

    def item_size(self, tensor: Tensor) -> int:
        """Returns the bytes of one element of the wire type."""
        return wire_type_of(tensor.dtype).size

    def from_result(self, memory: Any, like: Tensor, dims: Sequence[int]) -> Tensor:
        """Returns a tensor over memory of the runtime, which lives as long as the tensor; on a GPU a copy of it."""
        own = list(dims[: like.dim()])
        if memory is None:
            return torch.empty(own, dtype=like.dtype, device=like.device)
        return torch.from_dlpack(memory).view(like.dtype).view(own).to(like.device)

    def splits(self, values: Sequence[int]) -> Tensor:
        """Returns counts as a tensor of int32."""
        return torch.tensor(list(values), dtype=torch.int32, device="cpu")


#: Operations on torch tensors.
torch_ops = Ops(TorchAdapter())
