# ruff: noqa: PLR0917  (arguments of forward() have no names)
"""Gradients of the operations, by the conventions of Horovod, so that a program keeps its learning rates.

With P ranks, and G the gradient of the result on each rank:

    allreduce                     the same reduction of G: Sum adds, Average averages, scales multiply
    allgather, grouped too        this rank's rows of the average of G
    broadcast                     the average of G on the root, zeros elsewhere
    alltoall                      the rows of G, each back on the rank that sent it
    reducescatter, grouped too    G of all ranks, gathered: unchanged for Average, times P for Sum, times both scales

For allreduce and alltoall this is the gradient of the sum of the losses of all ranks, for allgather and broadcast 1/P
of that gradient, and for reducescatter P times that gradient.

Operations of backward() are not made again when a rank is lost, because gradients are laid out by rank numbers of the
forward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from sirtaki import errors
from sirtaki.basics import generation, rank
from sirtaki.ops import Ops, ReduceOp, Submission, group_names
from sirtaki.torch._optimizer.named_operations import once, repeated
from sirtaki.torch._optimizer.survivors import survivors

_ONE = (1.0, 1.0)


def _run(
    ctx: Any,
    ops: Ops,
    make: Callable[[], list[Submission]],
    tensors: Sequence[Tensor],
    root_rank: int | None = None,
    again: bool = True,
) -> list[Any]:
    """Returns the results of submissions, which survivors of a loss make again if `again`."""

    def attempt() -> list[Any]:
        ctx.generation = generation()
        return [handle.wait() for handle in ops.start(make())]

    return repeated(ops, attempt, tensors, root_rank) if again else attempt()


def _with_ranks_of_forward(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that does the same as `backward`, and refuses other ranks than those of the forward pass."""

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Tensor) -> Any:
        if survivors.repeats() and ctx.generation != generation():
            raise errors.RanksChangedError("a rank was lost between an operation and its gradient")
        with once():
            return backward(ctx, *grads)

    return checked


def _of_gradient(name: str | None) -> str | None:
    return None if name is None else f"{name}.gradient"


def _need_linear(op: ReduceOp) -> None:
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise errors.UnsupportedError(f"there is no gradient through {op.name.lower()}; only through Average and Sum")


class Allreduce(Function):
    """apply(ops, tensor, name, op, scales) -> tensor."""

    @staticmethod
    def forward(
        ctx: Any, ops: Ops, tensor: Tensor, name: str | None, op: ReduceOp, scales: tuple[float, float]
    ) -> Tensor:
        """See sirtaki.torch.allreduce()."""
        ctx.arguments = (ops, _of_gradient(name), op, scales)
        return _run(ctx, ops, lambda: [ops.allreduce(tensor, name, op, scales, in_place=False)], [tensor])[0]

    @staticmethod
    @_with_ranks_of_forward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Returns the same reduction of the gradient."""
        ops, name, op, scales = ctx.arguments
        _need_linear(op)
        return None, Allreduce.apply(ops, grads[0], name, op, scales), None, None, None


class GroupedAllreduce(Function):
    """apply(ops, name, op, scales, *tensors) -> tensors."""

    @staticmethod
    def forward(
        ctx: Any, ops: Ops, name: str | None, op: ReduceOp, scales: tuple[float, float], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """See sirtaki.torch.grouped_allreduce()."""
        ctx.arguments = (ops, _of_gradient(name), op, scales)
        names = group_names(name, len(tensors))

        def work() -> list[Submission]:
            return [ops.allreduce(t, n, op, scales, in_place=False) for t, n in zip(tensors, names, strict=True)]

        return tuple(_run(ctx, ops, work, tensors))

    @staticmethod
    @_with_ranks_of_forward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Returns the same reduction of the gradients."""
        ops, name, op, scales = ctx.arguments
        _need_linear(op)
        return None, None, None, None, *GroupedAllreduce.apply(ops, name, op, scales, *grads)


def _own_rows(ops: Ops, gradients: list[Tensor], rows: list[int], name: str | None) -> list[Tensor]:
    """Returns the rows of this rank of the averaged gradients."""
    mine = torch.tensor([rows], dtype=torch.int64, device="cpu")
    counts = ops.start_one(ops.allgather(mine, None if name is None else f"{name}.rows"))
    averages = GroupedAllreduce.apply(ops, name, ReduceOp.AVERAGE, _ONE, *gradients)
    offsets = counts.wait()[: ops.rank()].sum(0).tolist()
    return [t.narrow(0, begin, count) for t, begin, count in zip(averages, offsets, rows, strict=True)]


class Allgather(Function):
    """apply(ops, tensor, name) -> tensor."""

    @staticmethod
    def forward(ctx: Any, ops: Ops, tensor: Tensor, name: str | None) -> Tensor:
        """See sirtaki.torch.allgather()."""
        result = _run(ctx, ops, lambda: [ops.allgather(tensor, name)], [tensor])[0]
        ctx.arguments = (ops, [tensor.shape[0]], _of_gradient(name))
        return result

    @staticmethod
    @_with_ranks_of_forward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Returns the rows of this rank of the averaged gradient."""
        ops, rows, name = ctx.arguments
        return None, _own_rows(ops, list(grads), rows, name)[0], None


class GroupedAllgather(Function):
    """apply(ops, name, *tensors) -> tensors."""

    @staticmethod
    def forward(ctx: Any, ops: Ops, name: str | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See sirtaki.torch.grouped_allgather()."""
        names = group_names(name, len(tensors))

        def work() -> list[Submission]:
            return [ops.allgather(t, n) for t, n in zip(tensors, names, strict=True)]

        results = _run(ctx, ops, work, tensors)
        ctx.arguments = (ops, [t.shape[0] for t in tensors], _of_gradient(name))
        return tuple(results)

    @staticmethod
    @_with_ranks_of_forward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Returns the rows of this rank of the averaged gradients."""
        ops, rows, name = ctx.arguments
        return None, None, *_own_rows(ops, list(grads), rows, name)


class Broadcast(Function):
    """apply(ops, tensor, root_rank, name) -> tensor."""

    @staticmethod
    def forward(ctx: Any, ops: Ops, tensor: Tensor, root_rank: int, name: str | None) -> Tensor:
        """See sirtaki.torch.broadcast()."""
        ctx.arguments = (ops, root_rank, _of_gradient(name))
        work = functools.partial(ops.broadcast, tensor, root_rank, name, in_place=False)
        return _run(ctx, ops, lambda: [work()], [tensor], root_rank)[0]

    @staticmethod
    @_with_ranks_of_forward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Returns the averaged gradient on the root, zeros elsewhere."""
        ops, root_rank, name = ctx.arguments
        average = Allreduce.apply(ops, grads[0], name, ReduceOp.AVERAGE, _ONE)
        return None, (average if rank() == root_rank else torch.zeros_like(average)), None, None


class Alltoall(Function):
    """apply(ops, tensor, splits, name) -> (tensor, received splits)."""

    @staticmethod
    def forward(
        ctx: Any, ops: Ops, tensor: Tensor, splits: list[int] | None, name: str | None
    ) -> tuple[Tensor, Tensor]:
        """See sirtaki.torch.alltoall()."""
        work = functools.partial(ops.alltoall, tensor, splits, name, return_received=True)
        output, received = _run(ctx, ops, lambda: [work()], [tensor], again=False)[0]
        ctx.arguments = (ops, received.tolist(), _of_gradient(name))
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    @_with_ranks_of_forward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Sends every row of the gradient back to the rank that the row came from."""
        ops, received, name = ctx.arguments
        return None, Alltoall.apply(ops, grads[0], received, name)[0], None, None


def _gathered(
    ops: Ops, gradients: list[Tensor], op: ReduceOp, scales: tuple[float, float], name: str | None
) -> tuple[Tensor, ...]:
    """Returns the gradients of all blocks, concatenated and scaled by the factor of Horovod."""
    _need_linear(op)
    factor = scales[0] * scales[1] * (ops.size() if op == ReduceOp.SUM else 1)
    scaled = gradients if factor == 1 else [g * factor for g in gradients]
    result: tuple[Tensor, ...] = GroupedAllgather.apply(ops, name, *scaled)
    return result


class Reducescatter(Function):
    """apply(ops, tensor, name, op, scales) -> tensor."""

    @staticmethod
    def forward(
        ctx: Any, ops: Ops, tensor: Tensor, name: str | None, op: ReduceOp, scales: tuple[float, float]
    ) -> Tensor:
        """See sirtaki.torch.reducescatter()."""
        ctx.arguments = (ops, op, scales, _of_gradient(name))
        return _run(ctx, ops, lambda: [ops.reducescatter(tensor, name, op, scales)], [tensor], again=False)[0]

    @staticmethod
    @_with_ranks_of_forward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Returns the gradients of all blocks, concatenated and scaled."""
        ops, *how = ctx.arguments
        return None, _gathered(ops, list(grads), *how)[0], None, None, None


class GroupedReducescatter(Function):
    """apply(ops, name, op, scales, *tensors) -> tensors."""

    @staticmethod
    def forward(
        ctx: Any, ops: Ops, name: str | None, op: ReduceOp, scales: tuple[float, float], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """See sirtaki.torch.grouped_reducescatter()."""
        ctx.arguments = (ops, op, scales, _of_gradient(name))
        names = group_names(name, len(tensors))

        def work() -> list[Submission]:
            return [ops.reducescatter(t, n, op, scales) for t, n in zip(tensors, names, strict=True)]

        return tuple(_run(ctx, ops, work, tensors, again=False))

    @staticmethod
    @_with_ranks_of_forward
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Returns the gradients of all blocks, concatenated and scaled."""
        ops, *how = ctx.arguments
        return None, None, None, None, *_gathered(ops, list(grads), *how)
