"""TensorAdapter for torch: addresses and descriptions, without any C++ of torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sirtaki import errors
from sirtaki._dtypes import WIRE_TYPES, WireType, wire_type
from sirtaki.ops import Description, Ops, ReduceOp
from sirtaki.torch._cuda import CudaQueue, device_id

#: How tensors of each torch dtype travel.
DTYPES: dict[torch.dtype, WireType] = {
    getattr(torch, name): wire for name, wire in WIRE_TYPES.items() if hasattr(torch, name)
}


def wire_type_of(dtype: torch.dtype, reduce_op: ReduceOp | None = None) -> WireType:
    """Returns how tensors of a dtype travel, where `reduce_op` combines them or, with None, they are moved.

    Raises:
        InvalidArgumentError: they cannot.
    """
    how = DTYPES.get(dtype)
    if how is not None and (how.reduce_ops is None or reduce_op is None):
        return how
    return wire_type(str(dtype).removeprefix("torch."), None if reduce_op is None else reduce_op.name)


def describe_memory(
    dtype: torch.dtype, device: torch.device, shape: Sequence[int], strides: Sequence[int], address: int = 0
) -> Description:
    """Returns the description of dense memory of any strides, in elements, that the runtime sums, as it does gradients.

    Complex numbers are described as the pairs of reals that they are.
    """
    how = wire_type_of(dtype, ReduceOp.SUM)
    if how.extra:
        shape, strides = (*shape, *how.extra), (*(2 * stride for stride in strides), 1)
    return (address, how.code, *device_id(device), shape, strides)


def real_count(tensor: Tensor) -> int:
    """Returns the number of real numbers in a tensor."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def is_lazy(tensor: Tensor) -> bool:
    """True for a negated or conjugated view, whose memory holds the values before; some gradients are such."""
    return tensor.is_neg() or tensor.is_conj()


def check_kind(tensor: Any) -> None:
    """Refuses what is no dense tensor of the CPU or of a CUDA GPU."""
    if not isinstance(tensor, Tensor):
        raise errors.InvalidArgumentError(f"expected a torch.Tensor, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise errors.InvalidArgumentError(
            "sparse tensors cannot be sent as they are; use sparse_allreduce_async() or to_dense()"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise errors.UnsupportedError(
            f"memory of CPUs and CUDA GPUs can be sent, and the tensor is on {tensor.device}; copy it with .cpu() first"
        )


class TorchAdapter:
    """See sirtaki.ops.TensorAdapter."""

    def describe(self, tensor: Tensor, reduce_op: ReduceOp | None = None) -> Description:
        """Memory of a row-major tensor."""
        how = wire_type_of(tensor.dtype, reduce_op)
        dims = (*tensor.shape, *how.extra) if how.extra else tensor.shape
        return (tensor.data_ptr(), how.code, *device_id(tensor.device), dims, None)

    def queue(self, tensor: Tensor) -> CudaQueue | None:
        """The stream that is current on the tensor's GPU; None on the CPU."""
        return CudaQueue(tensor.device) if tensor.is_cuda else None

    def input(self, tensor: Tensor) -> Tensor:
        """The tensor itself, detached, or a row-major copy."""
        check_kind(tensor)
        # See is_lazy().
        return tensor.detach().resolve_neg().resolve_conj().contiguous()

    def overlaps(self, tensor: Tensor) -> bool:
        """True when elements share memory."""
        pairs = zip(tensor.stride(), tensor.shape, strict=True)
        return tensor.numel() > 1 and any(stride == 0 and length > 1 for stride, length in pairs)

    def same_memory(self, one: Tensor, other: Tensor) -> bool:
        """True when writing to one writes to the other."""
        return one.data_ptr() == other.data_ptr()

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Row-major memory of the same shape and dtype."""
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)

    def clone(self, tensor: Tensor) -> Tensor:
        """A row-major copy."""
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    def copy_back(self, target: Tensor, source: Tensor) -> None:
        """Writes `source` into `target`, outside autograd."""
        target.detach().copy_(source)

    def item_size(self, tensor: Tensor) -> int:
        """Bytes of one element of the memory that travels."""
        return wire_type_of(tensor.dtype).size

    def from_result(self, memory: Any, like: Tensor, dims: Sequence[int]) -> Tensor:
        """A tensor over the runtime's memory, which lives as long as the tensor; a copy of it on a GPU."""
        own = list(dims[: like.dim()])
        if memory is None:
            return torch.empty(own, dtype=like.dtype, device=like.device)
        return torch.from_dlpack(memory).view(like.dtype).view(own).to(like.device)

    def splits(self, values: Sequence[int]) -> Tensor:
        """Counts as a tensor of int32."""
        return torch.tensor(list(values), dtype=torch.int32, device="cpu")


#: The operations on torch tensors.
torch_ops = Ops(TorchAdapter())
