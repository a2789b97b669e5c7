"""Allreduce of sparse COO tensors: indices and values of all ranks are gathered."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sirtaki.errors import require
from sirtaki.ops import GroupHandle, Ops, ReduceOp, Submission
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.torch._adapter import torch_ops as _ops
from sirtaki.torch.ops import Average, Sum


def sparse_allreduce_async(
    tensor: Tensor, name: str | None = None, op: ReduceOp = Average, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Starts an allreduce of a sparse COO tensor by gathering indices and values.

    Returns:
        A function that waits and gives the combined sparse tensor, coalesced. synchronize() takes it too.
    """
    ops = _ops.within(process_set)
    parts, finish = sparse_parts(ops, tensor, name, op)
    handle = GroupHandle(ops.start(parts))
    return lambda: finish(handle.wait())


def sparse_parts(
    ops: Ops, tensor: Tensor, name: str | None, op: ReduceOp
) -> tuple[list[Submission], Callable[[list[Tensor]], Tensor]]:
    """The operations behind an allreduce of a sparse COO tensor, and what makes the combined one of their results."""
    require(op in (Average, Sum), f"op is {op}; sparse tensors can be averaged or summed")
    sparse = isinstance(tensor, Tensor) and tensor.layout is torch.sparse_coo
    require(sparse, "expected a sparse COO tensor; use allreduce_async() for dense ones")
    tensor = tensor.detach().coalesce()
    names = (None, None) if name is None else (f"{name}.indices", f"{name}.values")
    parts = [ops.allgather(tensor.indices().t(), names[0]), ops.allgather(tensor.values(), names[1])]
    shape, dtype = tensor.shape, tensor.dtype

    def finish(results: list[Tensor]) -> Tensor:
        all_indices, all_values = results
        if op == Average:
            all_values = (all_values / ops.size()).to(dtype)
        how = {"dtype": dtype, "device": all_values.device, "check_invariants": True}
        total = torch.sparse_coo_tensor(all_indices.t(), all_values, shape, **how)
        return total.coalesce()

    return parts, finish
