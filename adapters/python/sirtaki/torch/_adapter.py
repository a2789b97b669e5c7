"""TensorAdapter for torch: addresses and descriptions, without any C++ of torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sirtaki import errors
from sirtaki.ops import Description, Ops
from sirtaki.torch._cuda import CudaQueue, place

#: sirtaki_dtype of each torch dtype that can be sent.
DTYPES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.float16: 6,
    torch.bfloat16: 7,
    torch.float32: 8,
    torch.float64: 9,
    torch.bool: 10,
}
if hasattr(torch, "uint16"):
    DTYPES[torch.uint16] = 2


def dtype_code(dtype: torch.dtype) -> int:
    """The sirtaki_dtype. Raises InvalidArgumentError when there is none."""
    code = DTYPES.get(dtype)
    if code is None:
        known = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise errors.InvalidArgumentError(f"tensors of {dtype} cannot be sent; convert to one of {known}")
    return code


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

    def describe(self, tensor: Tensor) -> Description:
        """Memory of a row-major tensor."""
        return (tensor.data_ptr(), dtype_code(tensor.dtype), *place(tensor.device), tensor.shape, None)

    def queue(self, tensor: Tensor) -> CudaQueue | None:
        """The stream that is current on the tensor's GPU; None on the CPU."""
        return CudaQueue(tensor.device) if tensor.is_cuda else None

    def input(self, tensor: Tensor) -> Tensor:
        """The tensor itself, detached, or a row-major copy."""
        check_kind(tensor)
        # The memory of a negated view holds the values before negation.
        return tensor.detach().resolve_neg().contiguous()

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
        """Bytes of one element."""
        return tensor.element_size()

    def from_result(self, memory: Any, like: Tensor, dims: Sequence[int]) -> Tensor:
        """A tensor over the runtime's memory, which lives as long as the tensor; a copy of it on a GPU."""
        if memory is None:
            return torch.empty(list(dims), dtype=like.dtype, device=like.device)
        return torch.from_dlpack(memory).view(like.dtype).view(list(dims)).to(like.device)

    def splits(self, values: Sequence[int]) -> Tensor:
        """Counts as a tensor of int32."""
        return torch.tensor(list(values), dtype=torch.int32)


#: The operations on torch tensors.
torch_ops = Ops(TorchAdapter())
