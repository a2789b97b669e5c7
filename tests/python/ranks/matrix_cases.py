"""Every operation on every dtype and number of dimensions, in all its forms; gradients against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import sirtaki.torch as hvd

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
SHAPES = ((17,), (5, 7), (3, 4, 5))
EPSILON = 1e-3


def _value(rank: int, shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0) -> Tensor:
    """Returns a tensor of 1, 2 and 3, so that sums and products over four ranks are exact in every dtype."""
    draw = torch.Generator().manual_seed(100 * salt + rank)
    drawn = torch.randint(1, 4, shape, generator=draw)
    return drawn > 1 if dtype is torch.bool else drawn.to(dtype)


def _all(shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0) -> Tensor:
    """Returns the values of all ranks in float64."""
    return torch.stack([_value(rank, shape, dtype, salt).to(torch.int64).double() for rank in range(hvd.size())])


def _same(got: Tensor, want: Tensor, what: object) -> None:
    assert got.dtype == want.dtype, (what, got.dtype, want.dtype)
    assert got.shape == want.shape, (what, got.shape, want.shape)
    # Some dtypes have no comparison operator; float64 has.
    assert torch.equal(got.double(), want.double()), (what, got, want)


def _combined(op: Any, inputs: Tensor, dtype: torch.dtype) -> Tensor:
    if op == hvd.Average:
        mean = inputs.mean(0)
        return (mean if dtype.is_floating_point else mean.trunc()).to(dtype)
    made = {hvd.Sum: inputs.sum, hvd.Product: inputs.prod, hvd.Min: inputs.amin, hvd.Max: inputs.amax}[op](0)
    return (made != 0) if dtype is torch.bool else made.to(dtype)


def _close(got: Tensor, want: Tensor, what: object) -> None:
    assert got.dtype == want.dtype, what
    tolerance = torch.finfo(got.dtype).eps if got.dtype.is_floating_point else 0.0
    assert torch.allclose(got.double(), want.double(), rtol=tolerance, atol=0), (what, got, want)


def case_allreduce() -> None:
    for dtype in DTYPES:
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
            if dtype is torch.bool and op == hvd.Average:
                continue
            for salt, shape in enumerate(SHAPES):
                what = f"{op.name}.{dtype}.{shape}"
                want = _combined(op, _all(shape, dtype, salt), dtype)
                mine = _value(hvd.rank(), shape, dtype, salt)
                _close(hvd.allreduce(mine, op=op, name=what), want, what)
                _close(hvd.synchronize(hvd.allreduce_async(mine, op=op, name=what)), want, what)
                one, two = hvd.grouped_allreduce([mine, mine], op=op, name=what + ".group")
                _close(one, want, what)
                _close(two, want, what)
                own = mine.clone()
                assert hvd.allreduce_(own, op=op, name=what) is own
                _close(own, want, what)


def case_allgather() -> None:
    for dtype in DTYPES:
        for shape in SHAPES:
            what = f"gather.{dtype}.{shape}"
            parts = [_value(rank, (rank + shape[0], *shape[1:]), dtype) for rank in range(hvd.size())]
            mine = parts[hvd.rank()]
            _same(hvd.allgather(mine, name=what), torch.cat(parts), what)
            for got in hvd.grouped_allgather([mine, mine], name=what + ".group"):
                _same(got, torch.cat(parts), what)


def case_broadcast() -> None:
    for dtype in DTYPES:
        for shape in SHAPES:
            for root in range(hvd.size()):
                what = f"broadcast.{dtype}.{shape}.{root}"
                mine = _value(hvd.rank(), shape, dtype)
                _same(hvd.broadcast(mine, root, name=what), _value(root, shape, dtype), what)
                hvd.broadcast_(mine, root, name=what)
                _same(mine, _value(root, shape, dtype), what)


def case_alltoall() -> None:
    size, me = hvd.size(), hvd.rank()
    for dtype in DTYPES:
        for shape in SHAPES:
            what = f"alltoall.{dtype}.{shape}"
            # Rank r sends r + q + 1 rows to rank q.
            tensors = [
                _value(rank, (sum(rank + q + 1 for q in range(size)), *shape[1:]), dtype) for rank in range(size)
            ]
            splits = torch.tensor([me + q + 1 for q in range(size)], dtype=torch.int32)
            rows = []
            for rank in range(size):
                begin = sum(rank + q + 1 for q in range(me))
                rows.append(tensors[rank][begin : begin + rank + me + 1])
            got, received = hvd.alltoall(tensors[me], splits, name=what)
            _same(got, torch.cat(rows), what)
            assert received.tolist() == [rank + me + 1 for rank in range(size)]
            even = [_value(rank, (2 * size, *shape[1:]), dtype) for rank in range(size)]
            want = torch.cat([one[2 * me : 2 * me + 2] for one in even])
            _same(hvd.alltoall(even[me], name=what + ".even"), want, what)


def case_reducescatter() -> None:
    size, me = hvd.size(), hvd.rank()
    for dtype in DTYPES:
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
            if dtype is torch.bool and op == hvd.Average:
                continue
            for shape in SHAPES:
                what = f"scatter.{op.name}.{dtype}.{shape}"
                whole = _combined(op, _all(shape, dtype), dtype)
                begin = me * (shape[0] // size) + min(me, shape[0] % size)
                rows = shape[0] // size + (me < shape[0] % size)
                mine = _value(me, shape, dtype)
                _close(hvd.reducescatter(mine, op=op, name=what), whole[begin : begin + rows], what)
                for got in hvd.grouped_reducescatter([mine, mine], op=op, name=what + ".group"):
                    _close(got, whole[begin : begin + rows], what)


def _check_gradient(
    operation: Callable[[Tensor], list[Tensor]], shape: tuple[int, ...], what: str, factor: float
) -> None:
    """Compares `factor` times the gradient of the summed losses of all ranks with differences of these losses."""
    draw = torch.Generator().manual_seed(hvd.rank())
    x = torch.randn(shape, generator=draw, dtype=torch.float64)

    def loss_of(value: Tensor) -> Tensor:
        outputs = operation(value)
        weights = [torch.arange(1.0, out.numel() + 1, dtype=torch.float64).view(out.shape) for out in outputs]
        return sum(
            ((out * w).sum() * (hvd.rank() + 1) for out, w in zip(outputs, weights, strict=True)), x.new_zeros(())
        )

    given = x.clone().requires_grad_()
    loss_of(given).backward()
    for rank in range(hvd.size()):
        count = int(hvd.broadcast(torch.tensor(x.numel()), rank))
        for i in range(count):
            values = []
            for sign in (1, -1):
                moved = x.clone()
                if hvd.rank() == rank:
                    moved.view(-1)[i] += sign * EPSILON
                values.append(hvd.allreduce(loss_of(moved).detach(), op=hvd.Sum))
            if hvd.rank() == rank:
                expected = factor * (values[0] - values[1]) / (2 * EPSILON)
                assert abs(given.grad.view(-1)[i] - expected) < 1e-6 * (1 + abs(expected)), (what, rank, i)


def case_gradients_of_every_operation() -> None:
    size = hvd.size()
    own = (hvd.rank() + 1, 2)
    mine = [1] * (size - 1) + [2]
    scales = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    # Horovod averages gradients of results that copy the rows of a rank, and multiplies those of results that are parts
    # of sums.
    factors = {"gather": 1 / size, "gathers": 1 / size, "broadcast": 1 / size, "scatter": size, "scatters": size}
    operations: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Any]]] = {
        "sum": ((2, 2), lambda x: hvd.allreduce(x, op=hvd.Sum)),
        "average": ((3,), lambda x: hvd.allreduce(x, op=hvd.Average, **scales)),
        "fp64 compressed": ((3,), lambda x: hvd.allreduce(x, compression=hvd.Compression.none)),
        "group": ((2,), lambda x: hvd.grouped_allreduce([x, 2 * x], op=hvd.Average)),
        "gather": (own, hvd.allgather),
        "gathers": (own, lambda x: hvd.grouped_allgather([x, x * 3])),
        "broadcast": ((3,), lambda x: hvd.broadcast(x, size - 1)),
        "alltoall": ((size, 2), hvd.alltoall),
        "alltoall by splits": ((size + 1, 1), lambda x: hvd.alltoall(x, torch.tensor(mine, dtype=torch.int32))[0]),
        "scatter": ((size + 1, 2), lambda x: hvd.reducescatter(x, op=hvd.Sum, **scales)),
        "scatters": ((size + 1,), lambda x: hvd.grouped_reducescatter([x, x * 2], op=hvd.Average)),
        "of a set": ((2,), lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=hvd.ProcessSet(range(size)))),
    }
    for what, (shape, operation) in operations.items():

        def listed(x: Tensor, operation: Callable[[Tensor], Any] = operation) -> list[Tensor]:
            out = operation(x)
            return [out] if isinstance(out, Tensor) else list(out)

        _check_gradient(listed, shape, what, factors.get(what, 1))
