"""Allreduce of sparse COO tensors, which gathers indices and values of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

    Args:
        tensor: a sparse COO tensor of the same shape and dtype on all ranks.
        name: the same on all ranks; None: the order of calls decides.
        op: Average (default) or Sum.
        process_set: the ranks that take part; all by default.

    Returns:
        A function that waits and returns the combined sparse tensor, coalesced. synchronize() accepts it, too.

    Raises:
        ValueError: `tensor` is not sparse, or `op` is another reduction.
    """
    ops = _ops.within(process_set)
    parts, finish = sparse_parts(ops, tensor, name, op)
    handle = GroupHandle(ops.start(parts))
    return lambda: finish(handle.wait())


def sparse_parts(
    ops: Ops, tensor: Tensor, name: str | None, op: ReduceOp
) -> tuple[list[Submission], Callable[[list[Tensor]], Tensor]]:
    """Returns the operations of a sparse allreduce, and a function that makes the combined tensor of their results."""
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
        how: dict[str, Any] = {"dtype": dtype, "device": all_values.device, "check_invariants": True}
        total = torch.sparse_coo_tensor(all_indices.t(), all_values, shape, **how)
        return total.coalesce()

    return parts, finish
