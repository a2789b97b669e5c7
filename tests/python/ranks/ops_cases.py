# ruff: noqa: PT017  (no pytest on the ranks)
"""Operations against the results that torch computes from the inputs of all ranks, which every rank can generate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import sirtaki.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
SHAPES = [(), (1,), (0,), (17,), (5, 7), (3, 4, 5), (70_000,)]


def value(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Returns the input of a rank: small numbers, whose sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    numbers = torch.randint(0, 5, shape, generator=generator)
    return numbers % 2 == 1 if dtype == torch.bool else numbers.to(dtype)


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """Returns the inputs of all ranks."""
    return [value(r, shape, dtype, seed) for r in range(hvd.size())]


def stacked(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Returns all inputs stacked, in float64 (exact for these numbers) or bool."""
    wide = torch.bool if dtype == torch.bool else torch.float64
    return torch.stack([v.to(torch.int64).to(wide) for v in values(shape, dtype)])


def same(got: Tensor, want: Tensor, what: object) -> None:
    assert got.dtype == want.dtype, (what, got.dtype, want.dtype)
    assert got.shape == want.shape, (what, got.shape, want.shape)
    assert torch.equal(got.double(), want.double()), (what, got, want)


def case_ranks_know_themselves() -> None:
    assert 0 <= hvd.rank() < hvd.size()
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous()


def case_allreduce_sums_every_dtype_and_shape() -> None:
    for dtype in DTYPES:
        for shape in SHAPES:
            total = stacked(shape, dtype)
            want = total.any(0) if dtype == torch.bool else total.sum(0).to(dtype)
            name = f"sum.{dtype}.{shape}"
            same(hvd.allreduce(value(hvd.rank(), shape, dtype), name=name, op=hvd.Sum), want, name)


def case_allreduce_finds_min_max_product() -> None:
    for dtype in [torch.float32, torch.int32, torch.uint8, torch.bfloat16]:
        inputs = stacked((33,), dtype)
        mine = value(hvd.rank(), (33,), dtype)
        same(hvd.allreduce(mine, op=hvd.Min), inputs.amin(0).to(dtype), dtype)
        same(hvd.allreduce(mine, op=hvd.Max), inputs.amax(0).to(dtype), dtype)
        same(hvd.allreduce(mine, op=hvd.Product), inputs.prod(0).to(dtype), dtype)


def case_allreduce_averages_and_truncates_integers() -> None:
    for dtype in [torch.float32, torch.float64, torch.int32, torch.int64]:
        total = stacked((29,), dtype).sum(0)
        want = total / hvd.size() if dtype.is_floating_point else torch.div(total, hvd.size(), rounding_mode="trunc")
        got = hvd.allreduce(value(hvd.rank(), (29,), dtype))
        assert got.dtype == dtype
        assert torch.allclose(got.double(), want.double(), rtol=1e-6), dtype


def case_allreduce_scales_before_and_after() -> None:
    got = hvd.allreduce(
        torch.full((4,), hvd.rank() + 1.0), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0, name="scaled"
    )
    same(got, torch.full((4,), 1.5 * sum(range(1, hvd.size() + 1))), "scaled")


def case_bool_average_is_refused() -> None:
    try:
        hvd.allreduce(torch.ones(3, dtype=torch.bool), name="bool.average")
    except (ValueError, NotImplementedError) as error:
        assert "bool" in str(error)
    else:
        raise AssertionError("bool was averaged")


def case_in_place_works_on_any_layout() -> None:
    base = torch.arange(24.0).view(4, 6) + hvd.rank()
    want = sum(torch.arange(24.0).view(4, 6) + r for r in range(hvd.size()))
    for number, view in enumerate([lambda t: t, lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1:3]]):
        mine = base.clone()
        result = hvd.allreduce_(view(mine), op=hvd.Sum, name=f"layout.{number}")
        same(result, view(want), number)
        same(view(mine), view(want), number)


def case_handles_finish_in_any_order() -> None:
    handles = [hvd.allreduce_async(torch.full((100 * i,), float(i)), name=f"many.{i}", op=hvd.Sum) for i in range(20)]
    order = torch.randperm(20, generator=torch.Generator().manual_seed(hvd.rank())).tolist()
    for i in order:
        same(hvd.synchronize(handles[i]), torch.full((100 * i,), float(i * hvd.size())), i)
        assert hvd.poll(handles[i])


def case_ranks_submit_in_different_orders() -> None:
    order = torch.randperm(30, generator=torch.Generator().manual_seed(hvd.rank())).tolist()
    handles = {i: hvd.allreduce_async_(torch.full((50,), float(i)), name=f"shuffled.{i}", op=hvd.Sum) for i in order}
    for i, handle in handles.items():
        same(hvd.synchronize(handle), torch.full((50,), float(i * hvd.size())), i)


def case_large_operations_in_pieces_and_priorities_give_the_same_sums() -> None:
    """Large tensors of extreme priorities travel in several pieces each; a small one is urgent."""
    numel = (10 << 20) // 4 + 3
    large = [torch.arange(numel, dtype=torch.float32).remainder_(13 + i).add_(hvd.rank()) for i in range(3)]
    want = [torch.arange(numel, dtype=torch.float32).remainder_(13 + i).mul_(hvd.size()) for i in range(3)]
    ranks = sum(range(hvd.size()))
    priorities = [5, -(1 << 31), (1 << 31) - 1]
    handles = [
        hvd.allreduce_async_(tensor, name=f"pieces.{i}", op=hvd.Sum, priority=priority)
        for i, (tensor, priority) in enumerate(zip(large, priorities, strict=True))
    ]
    urgent = hvd.allreduce_async(torch.ones(7), name="pieces.urgent", op=hvd.Sum, priority=-5)
    same(hvd.synchronize(urgent), torch.full((7,), float(hvd.size())), "urgent")
    for i, handle in enumerate(handles):
        same(hvd.synchronize(handle), want[i] + ranks, i)
    whole = torch.full((numel,), float(hvd.rank()))
    handle = hvd.broadcast_async_(whole, root_rank=hvd.size() - 1, name="pieces.broadcast", priority=1)
    same(hvd.synchronize(handle), torch.full((numel,), float(hvd.size() - 1)), "broadcast")


def case_a_priority_is_an_integer_of_32_bits() -> None:
    for wrong in (1 << 31, 1.5, "first"):
        try:
            hvd.allreduce_async(torch.ones(3), name="wrong.priority", priority=wrong)
        except ValueError as error:
            assert "priority" in str(error)
        else:
            raise AssertionError(wrong)


def case_forgotten_handles_do_no_harm() -> None:
    for i in range(10):
        hvd.allreduce_async(torch.ones(1000), name=f"forgotten.{i}")
    hvd.barrier()
    same(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(hvd.size())), "after")


def case_futures_resolve() -> None:
    future = hvd.get_future(hvd.allreduce_async(torch.ones(5), name="future", op=hvd.Sum))
    same(future.wait(), torch.full((5,), float(hvd.size())), "future")


def case_grouped_allreduce() -> None:
    tensors = [torch.full((i,), float(hvd.rank())) for i in range(5)]
    total = float(sum(range(hvd.size())))
    for i, got in enumerate(hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")):
        same(got, torch.full((i,), total), i)
    hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    for i, got in enumerate(tensors):
        same(got, torch.full((i,), total), i)


def case_allgather_joins_different_first_dimensions() -> None:
    for dtype in DTYPES:
        parts = [value(r, (r, 3), dtype) for r in range(hvd.size())]
        same(hvd.allgather(parts[hvd.rank()], name=f"gather.{dtype}"), torch.cat(parts), dtype)
    got = hvd.grouped_allgather([torch.full((1,), hvd.rank()), torch.full((2, 2), hvd.rank())], name="gathers")
    assert got[0].tolist() == list(range(hvd.size()))
    assert got[1].shape == (2 * hvd.size(), 2)


def case_allgather_of_nothing_is_empty() -> None:
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)


def case_allgather_result_outlives_its_handle() -> None:
    kept = [hvd.allgather(torch.full((1000,), float(i)), name=f"kept.{i}") for i in range(5)]
    for i, tensor in enumerate(kept):
        assert tensor.eq(i).all()
        tensor.add_(1)


def case_broadcast_from_every_root() -> None:
    for root in range(hvd.size()):
        for dtype in [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint16]:
            for shape in [(), (0,), (5, 3)]:
                mine = value(hvd.rank(), shape, dtype)
                name = f"broadcast.{root}.{dtype}.{shape}"
                same(hvd.broadcast(mine, root, name), value(root, shape, dtype), name)
                same(mine, value(hvd.rank(), shape, dtype), name)
                hvd.broadcast_(mine, root, name)
                same(mine, value(root, shape, dtype), name)


def case_alltoall_with_and_without_splits() -> None:
    rank, size = hvd.rank(), hvd.size()
    same(hvd.alltoall(torch.arange(size) + 10 * rank), torch.arange(size) * 10 + rank, "equal")
    splits = torch.arange(size, dtype=torch.int32)
    rows = torch.cat([torch.full((r, 2), float(10 * rank + r)) for r in range(size)])
    got, received = hvd.alltoall(rows, splits)
    same(got, torch.cat([torch.full((rank, 2), 10.0 * r + rank) for r in range(size)]), "splits")
    assert received.tolist() == [rank] * size


def case_reducescatter_gives_blocks() -> None:
    rank, size = hvd.rank(), hvd.size()
    for rows in [size, 2 * size + 1, 1]:
        inputs = torch.arange(float(rows * 3)).view(rows, 3)
        counts = [rows // size + (r < rows % size) for r in range(size)]
        want = (inputs * size).split(counts)[rank]
        same(hvd.reducescatter(inputs, op=hvd.Sum, name=f"scatter.{rows}"), want, rows)
        same(hvd.reducescatter(inputs, name=f"scatter.{rows}"), want / size, rows)
    assert len(hvd.grouped_reducescatter([torch.ones(size), torch.ones(size, 2)], op=hvd.Sum)) == 2


def case_compression_casts_and_casts_back() -> None:
    for compression in [hvd.Compression.fp16, hvd.Compression.bf16, hvd.Compression.none]:
        got = hvd.allreduce(torch.full((4,), 0.5), compression=compression, op=hvd.Sum)
        same(got, torch.full((4,), 0.5 * hvd.size()), compression)


def _gradient(operation: Callable[[Tensor], Any], shape: tuple[int, ...]) -> Tensor:
    """Returns the gradient at ones of `shape`, where every element of every result has the gradient rank + 1."""
    x = torch.ones(shape, requires_grad=True)
    results = operation(x)
    for result in [results] if isinstance(results, Tensor) else results:
        result.backward(torch.full_like(result, hvd.rank() + 1.0), retain_graph=True)
    assert x.grad is not None
    return x.grad


def case_gradients_are_those_of_horovod() -> None:
    rank, size = hvd.rank(), hvd.size()
    total = float(sum(range(1, size + 1)))
    own = (rank + 1, 2)
    scales = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    same(_gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), (4,)), torch.full((4,), total), "sum")
    same(_gradient(lambda x: hvd.allreduce(x, **scales), (4,)), torch.full((4,), 2 * total / size), "average")
    same(_gradient(lambda x: hvd.grouped_allreduce([x, x]), (4,)), torch.full((4,), 2 * total / size), "averages")
    same(_gradient(hvd.allgather, own), torch.full(own, total / size), "allgather")
    same(_gradient(lambda x: hvd.grouped_allgather([x, x]), own), torch.full(own, 2 * total / size), "allgathers")
    for root in range(size):
        got = _gradient(lambda x, root=root: hvd.broadcast(x, root), (3,))
        same(got, torch.full((3,), total / size if rank == root else 0.0), "broadcast")
    same(_gradient(hvd.alltoall, (size,)), torch.arange(1.0, size + 1), "alltoall")
    rows = torch.arange(1.0, size + 1)
    same(_gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), (size,)), rows * size, "reducescatter of sums")
    same(_gradient(lambda x: hvd.reducescatter(x, op=hvd.Average), (size,)), rows, "reducescatter of averages")
    scaled = _gradient(lambda x: hvd.reducescatter(x, op=hvd.Average, **scales), (size,))
    same(scaled, 2 * rows, "reducescatter with scales")
    group = _gradient(lambda x: hvd.grouped_reducescatter([x, x], op=hvd.Sum, **scales), (size,))
    same(group, 2 * 2 * rows * size, "grouped_reducescatter with scales")


def case_gradients_have_gradients() -> None:
    for operation in (hvd.allgather, lambda x: hvd.broadcast(x, 0), hvd.alltoall, hvd.reducescatter):
        x = torch.full((hvd.size(),), 3.0, requires_grad=True)
        (slope,) = torch.autograd.grad(operation(x**3).sum(), x, create_graph=True)
        slope.sum().backward()
        same(x.grad, slope.detach() * 2 / x.detach(), "second derivative")


def case_every_form_that_is_waited_for_later() -> None:
    rank, size = hvd.rank(), hvd.size()
    mine, total = torch.full((size, 2), rank + 1.0), float(sum(range(1, size + 1)))
    joined = torch.cat([torch.full((size, 2), r + 1.0) for r in range(size)])
    from_each = torch.cat([torch.full((1, 2), r + 1.0) for r in range(size)])
    summed, first = torch.full((size, 2), total), torch.ones(size, 2)
    forms = {
        "allreduce_async": (hvd.allreduce_async(mine, op=hvd.Sum), summed),
        "grouped_allreduce_async": (hvd.grouped_allreduce_async([mine, mine], op=hvd.Sum), [summed, summed]),
        "allgather_async": (hvd.allgather_async(mine), joined),
        "grouped_allgather_async": (hvd.grouped_allgather_async([mine]), [joined]),
        "broadcast_async": (hvd.broadcast_async(mine, 0), first),
        "alltoall_async": (hvd.alltoall_async(mine), (from_each, torch.ones(size, dtype=torch.int32))),
        "reducescatter_async": (hvd.reducescatter_async(mine, op=hvd.Sum), summed[:1]),
        "grouped_reducescatter_async": (hvd.grouped_reducescatter_async([mine], op=hvd.Sum), [summed[:1]]),
    }
    for what, (handle, want) in forms.items():
        got = hvd.synchronize(handle)
        assert hvd.poll(handle)
        pairs = [(got, want)] if isinstance(want, Tensor) else list(zip(got, want, strict=True))
        for one, other in pairs:
            assert one.dtype is other.dtype, what
            same(one, other, what)
    inside = [mine.clone() for _ in range(4)]
    handles = [
        hvd.allreduce_async_(inside[0], op=hvd.Sum),
        hvd.grouped_allreduce_async_(inside[1:3], op=hvd.Sum),
        hvd.broadcast_async_(inside[3], 0),
    ]
    for handle in handles:
        hvd.synchronize(handle)
    for tensor, want in zip(inside, (summed, summed, summed, first), strict=True):
        same(tensor, want, "in place")


def case_what_is_built_is_told() -> None:
    assert hvd.gloo_enabled()
    assert hvd.gloo_built()
    for no in (hvd.mpi_enabled, hvd.mpi_built, hvd.mpi_threads_supported, hvd.ddl_built, hvd.ccl_built, hvd.rocm_built):
        assert not no()
    assert isinstance(hvd.cuda_built(), bool)
    assert isinstance(hvd.nccl_built(), int)
    assert hvd.is_homogeneous()
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())


def case_sparse_allreduce() -> None:
    rank, size = hvd.rank(), hvd.size()
    mine = torch.sparse_coo_tensor([[0, rank + 1]], [1.0, 2.0], (size + 1,), check_invariants=True)
    want = torch.tensor([float(size)] + [2.0] * size)
    same(hvd.sparse_allreduce_async(mine, "sparse", hvd.Sum)().to_dense(), want, "sum")
    same(hvd.synchronize(hvd.sparse_allreduce_async(mine)).to_dense(), want / size, "average")


def case_objects() -> None:
    rank, size = hvd.rank(), hvd.size()
    assert hvd.broadcast_object({"rank": rank, "data": b"x" * 1000}, root_rank=size - 1)["rank"] == size - 1
    assert hvd.allgather_object(["a"] * rank) == [["a"] * r for r in range(size)]


def case_parameters_and_optimizer_state_are_equalised() -> None:
    rank = hvd.rank()
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    if rank == 0:
        model(torch.randn(8, 3)).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    for tensor in model.state_dict().values():
        gathered = hvd.allgather(tensor.reshape(1, -1).double())
        assert torch.equal(gathered, gathered[:1].expand_as(gathered))
    moments = torch.cat([s["exp_avg"].flatten() for s in optimizer.state.values()])
    gathered = hvd.allgather(moments.unsqueeze(0))
    assert torch.equal(gathered, gathered[:1].expand_as(gathered))
    assert moments.abs().sum() > 0


def case_timeline_is_written() -> None:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        hvd.start_timeline(str(path))
        hvd.allreduce(torch.ones(10), name="traced")
        hvd.stop_timeline()


class _Negated(torch.autograd.Function):
    """The identity; its gradient is a negated view of the negative gradient."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> torch.Tensor:
        del ctx
        return torch._neg_view(-grads[0])


def case_negated_views_send_their_values() -> None:
    values = torch.arange(3.0) + hvd.rank()
    expected = (hvd.size() * torch.arange(3.0) + sum(range(hvd.size()))).tolist()
    view = torch.complex(torch.zeros(3), -values).conj().imag
    assert view.is_neg()
    assert hvd.allreduce(view, op=hvd.Sum).tolist() == expected
    assert hvd.allgather(view)[:3].tolist() == [0.0, 1.0, 2.0]
    assert hvd.allreduce_(view, op=hvd.Sum) is view
    assert view.tolist() == expected
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    for _ in range(3):
        optimizer.zero_grad()
        _Negated.apply(weight).sum().backward()
        assert weight.grad.tolist() == [1.0] * 3
