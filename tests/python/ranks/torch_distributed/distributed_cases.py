"""Backend `sirtaki` of torch.distributed: collectives beside Gloo in the same job, works, errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

import sirtaki
from ranks.error_cases import fails
from sirtaki.torch.distributed.group import WINDOW

SEED = int(os.environ.get("SEED", "20"))
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)


@cache
def gloo() -> Any:
    """Returns a Gloo group beside that of Sirtaki; the first case makes it, on all ranks."""
    print(f"SEED={SEED}")
    dist.init_process_group("sirtaki")
    return dist.new_group(backend="gloo")


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def numbers(*shape: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> Tensor:
    """Returns small whole numbers that differ between ranks; their sums and products are exact in every dtype."""
    generator = torch.Generator().manual_seed(SEED * 1000 + salt * 17 + rank())
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def same(run: Callable[[Any], Tensor | list[Tensor]]) -> None:
    """Requires that `run(group)` gives the same over both backends."""
    ours, theirs = run(None), run(gloo())
    pairs = zip([ours], [theirs], strict=True) if isinstance(ours, Tensor) else zip(ours, theirs, strict=True)
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert torch.equal(one, other), f"{one} is not {other}"


def case_the_group_says_what_it_is() -> None:
    gloo()
    assert dist.get_backend() == "sirtaki"
    assert (rank(), size()) == (sirtaki.rank(), sirtaki.size())
    dist.barrier()
    dist.barrier(async_op=True).wait()


def case_all_reduce_is_gloos() -> None:
    def run(group: Any, op: Any, dtype: torch.dtype) -> Tensor:
        tensor = numbers(5, 3, dtype=dtype)
        dist.all_reduce(tensor, op, group)
        return tensor

    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        for dtype in (*INTEGERS, *FLOATS, *HALVES):
            same(lambda group, op=op, dtype=dtype: run(group, op, dtype))


def case_all_reduce_averages() -> None:
    for dtype in (*FLOATS, *HALVES):
        tensor = torch.full((4,), float(rank()), dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert torch.equal(tensor, torch.full((4,), (size() - 1) / 2, dtype=dtype))


def case_all_reduce_of_complex_and_bool() -> None:
    tensor = torch.full((3,), complex(rank(), 1.0))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [complex(sum(range(size())), size())] * 3
    flag = torch.tensor([rank() == 0, False])
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    assert flag.tolist() == [True, False]


def case_views_scalars_and_nothing() -> None:
    whole = numbers(6, 8)
    expected = whole.clone()
    for view, copy in ((whole[:, ::2].t(), expected[:, ::2]), (whole[1:3, 1::2], expected[1:3, 1::2])):
        total = copy.contiguous()
        dist.all_reduce(total, group=gloo())
        copy.copy_(total)
        dist.all_reduce(view)
    assert torch.equal(whole, expected)
    scalar = torch.tensor(1.0 + rank())
    dist.all_reduce(scalar)
    assert scalar.item() == sum(range(1, size() + 1))
    gathered = [torch.zeros(2, 3).t() for _ in range(size())]
    dist.all_gather(gathered, torch.arange(6.0).view(2, 3).t() + rank())
    assert all(torch.equal(part, torch.arange(6.0).view(2, 3).t() + r) for r, part in enumerate(gathered))
    nothing = torch.empty(0, 3)
    dist.all_reduce(nothing)
    dist.broadcast(nothing, 0)
    dist.all_gather([torch.empty(0, 3) for _ in range(size())], nothing)


def case_parameters_can_be_written() -> None:
    weight = torch.nn.Parameter(torch.full((2, 2), float(rank())))
    dist.broadcast(weight, size() - 1)
    assert weight.tolist() == [[size() - 1.0] * 2] * 2
    dist.all_gather_single(weight.new_empty(2 * size(), 2), weight)


def case_broadcast_and_reduce_are_gloos() -> None:
    def run(group: Any, root: int) -> list[Tensor]:
        sent, summed = numbers(3, dtype=torch.int64, salt=root), numbers(4, salt=root)
        dist.broadcast(sent, root, group)
        dist.reduce(summed, root, group=group)
        return [sent, summed] if rank() == root else [sent]

    for root in range(size()):
        same(lambda group, root=root: run(group, root))


def case_reduce_leaves_other_ranks_alone() -> None:
    tensor = torch.full((3,), 1.0 + rank())
    dist.reduce(tensor, 0)
    assert tensor[0].item() == (sum(range(1, size() + 1)) if rank() == 0 else 1.0 + rank())


def case_all_gather_is_gloos() -> None:
    def run(group: Any, dtype: torch.dtype) -> list[Tensor]:
        source = numbers(2, 3, dtype=dtype)
        parts = [torch.zeros_like(source) for _ in range(size())]
        dist.all_gather(parts, source, group)
        whole = torch.zeros(2 * size(), 3, dtype=dtype)
        dist.all_gather_single(whole, source, group)
        return [*parts, whole]

    for dtype in (*INTEGERS, *FLOATS, *HALVES):
        same(lambda group, dtype=dtype: run(group, dtype))
    for dtype in (torch.int16, torch.uint16, torch.bool):  # Gloo does not have these dtypes
        whole = torch.zeros(size(), dtype=dtype)
        dist.all_gather_single(whole, torch.tensor([rank() == 1], dtype=dtype))
        assert whole.tolist() == [r == 1 for r in range(size())]


def case_all_gather_of_different_sizes() -> None:
    parts = [torch.zeros(r + 1) for r in range(size())]
    dist.all_gather(parts, torch.full((rank() + 1,), float(rank())))
    assert all(part.tolist() == [float(r)] * (r + 1) for r, part in enumerate(parts))


def case_gather_and_scatter_are_gloos() -> None:
    def run(group: Any, root: int) -> list[Tensor]:
        here = rank() == root
        parts = [torch.zeros(2, 2) for _ in range(size())] if here else None
        dist.gather(numbers(2, 2, salt=root), parts, root, group)
        given = [torch.full((3,), 10.0 * root + r) for r in range(size())] if here else None
        taken = torch.zeros(3)
        dist.scatter(taken, given, root, group)
        return [taken, *(parts or [])]

    for root in range(size()):
        same(lambda group, root=root: run(group, root))


def case_reduce_scatter_is_the_part_of_the_sum() -> None:
    source = numbers(2 * size(), 3)
    expected = source.clone()
    dist.all_reduce(expected)
    mine = slice(2 * rank(), 2 * rank() + 2)
    output = torch.zeros(2, 3)
    dist.reduce_scatter_single(output, source)
    assert torch.equal(output, expected[mine])
    output.zero_()
    dist.reduce_scatter(output, [part.t().contiguous().t() for part in source.chunk(size())], dist.ReduceOp.SUM)
    assert torch.equal(output, expected[mine])
    dist.reduce_scatter_single(output, source, dist.ReduceOp.AVG)
    assert torch.allclose(output, expected[mine] / size())


def case_all_to_all_sends_to_each_rank_its_own() -> None:
    def run(group: Any) -> Tensor:
        output = torch.zeros(2 * size(), 3)
        dist.all_to_all_single(output, numbers(2 * size(), 3), group=group)
        return output

    same(run)
    # Rank r receives r + 1 rows from each rank; in the list form, r + 1 elements.
    sends = [r + 1 for r in range(size())]
    source = torch.full((sum(sends), 2), float(rank()))
    output = torch.zeros((rank() + 1) * size(), 2)
    dist.all_to_all_single(output, source, [rank() + 1] * size(), sends)
    assert output[:, 1].tolist() == [float(r) for r in range(size()) for _ in range(rank() + 1)]
    outputs = [torch.zeros(rank() + 1) for _ in range(size())]
    dist.all_to_all(outputs, [torch.full((r + 1,), float(rank())) for r in range(size())])
    assert all(out.tolist() == [float(r)] * (rank() + 1) for r, out in enumerate(outputs))


def case_sparse_tensors_are_summed() -> None:
    indices = torch.tensor([[0, rank() + 1]])
    tensor = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0]), (size() + 1,))
    dist.all_reduce(tensor)
    assert tensor.to_dense().tolist() == [float(size()), *[2.0] * size()]
    fails(lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX), ValueError, "summed")


def case_coalesced_calls() -> None:
    tensors = [torch.full((n + 1,), float(rank())) for n in range(3)]
    dist.all_reduce_coalesced(tensors)
    total = float(sum(range(size())))
    assert [t.tolist() for t in tensors] == [[total] * (n + 1) for n in range(3)]
    whole = [torch.zeros(size()), torch.zeros(2 * size())]
    with dist._coalescing_manager():
        dist.all_gather_single(whole[0], torch.full((1,), float(rank())))
        dist.all_gather_single(whole[1], torch.full((2,), float(rank())))
    assert [w.tolist()[-1] for w in whole] == [size() - 1.0] * 2
    parts = [torch.zeros(1), torch.zeros(2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.reduce_scatter_single(parts[0], torch.ones(size()))
        dist.reduce_scatter_single(parts[1], torch.ones(2 * size()))
    manager.wait()
    assert [p.tolist() for p in parts] == [[size()], [size()] * 2]
    lists = [[torch.zeros(2), torch.zeros(1)] for _ in range(size())]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank())), torch.ones(1)])
    assert [pair[0][1].item() for pair in lists] == [float(r) for r in range(size())]


def case_functional_collectives() -> None:
    group = dist.group.WORLD
    total = functional.all_reduce(torch.full((2,), float(rank())), "sum", group)
    assert total.tolist() == [sum(range(size()))] * 2
    whole = functional.all_gather_tensor(torch.full((1, 2), float(rank())), 0, group)
    assert whole[:, 0].tolist() == list(range(size()))
    part = functional.reduce_scatter_tensor(torch.ones(2 * size()), "sum", 0, group)
    assert part.tolist() == [size()] * 2


def case_objects() -> None:
    mine = {"rank": rank(), "text": "x" * (rank() * 5000)}
    found: list[Any] = [None] * size()
    dist.all_gather_object(found, mine)
    assert [f["rank"] for f in found] == list(range(size()))
    assert [len(f["text"]) for f in found] == [5000 * r for r in range(size())]
    given = [mine, "second"] if rank() == 1 else [None, None]
    dist.broadcast_object_list(given, 1)
    assert given[0]["rank"] == 1
    assert given[1] == "second"
    gathered: list[Any] | None = [None] * size() if rank() == 0 else None
    dist.gather_object(mine, gathered, 0)
    if gathered is not None:
        assert [g["rank"] for g in gathered] == list(range(size()))
    taken: list[Any] = [None]
    dist.scatter_object_list(taken, [f"for {r}" for r in range(size())] if rank() == 0 else None, 0)
    assert taken == [f"for {rank()}"]


def case_works_in_any_order() -> None:
    tensors = [torch.full((n + 1,), 1.0) for n in range(WINDOW * 2)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait() is True
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    assert all(tensor.tolist() == [size()] * len(tensor) for tensor in tensors)
    assert works[3].result()[0] is tensors[3]


def case_futures_hold_the_outputs() -> None:
    outputs = [torch.zeros(2) for _ in range(size())]
    work = dist.all_gather(outputs, torch.full((2,), float(rank())), async_op=True)
    last = work.get_future().then(lambda done: done.value()[-1].clone())
    assert last.wait().tolist() == [size() - 1.0] * 2
    work.wait()
    assert work.get_future().wait()[0] is outputs[0]
    failed = dist.all_reduce(torch.ones(1 + rank()), async_op=True).get_future()
    fails(failed.wait, RuntimeError, "all_reduce", "the ranks disagree on shapes")


def case_a_rank_that_evaluates_alone_is_told_so() -> None:
    if size() == 1:
        return
    gradients, loss = torch.ones(5), torch.ones((), dtype=torch.float64)
    mine = loss if rank() == 0 else gradients
    fails(lambda: dist.all_reduce(mine), RuntimeError, "all_reduce", "data types", "evaluates alone")
    if rank() == 0:
        fails(lambda: dist.broadcast(loss, 0), RuntimeError, "broadcast", "operations", "evaluates alone")
    else:
        fails(lambda: dist.all_reduce(gradients), RuntimeError, "all_reduce", "operations", "evaluates alone")


def case_a_dropped_work_still_writes() -> None:
    output = torch.zeros(size())
    dist.all_gather_single(output, torch.full((1,), float(rank())), async_op=True)
    for _ in range(WINDOW + 1):  # a call waits for the earlier one of the same name
        dist.barrier()
    assert output.tolist() == list(range(size()))


def case_two_groups_in_different_order() -> None:
    other = dist.new_group(timeout=timedelta(seconds=60))
    assert other is not dist.group.WORLD
    assert dist.get_backend(other) == "sirtaki"
    tensors = torch.full((3,), 1.0), torch.full((3,), 2.0)
    groups = [None, other] if rank() == 0 else [other, None]
    works = [dist.all_reduce(tensors[group is other], group=group, async_op=True) for group in groups]
    for work in works:
        work.wait()
    assert [t[0].item() for t in tensors] == [size(), 2.0 * size()]
    dist.destroy_process_group(other)
    dist.barrier()


def case_ranks_that_disagree_are_told_at_once() -> None:
    fails(lambda: dist.all_reduce(torch.ones(3 + rank())), sirtaki.MismatchError, "all_reduce (call", "[3]", "[4]")

    def different() -> None:
        if rank() == 0:
            dist.all_gather_single(torch.zeros(3 * size()), torch.ones(3))
        else:
            dist.all_reduce(torch.ones(3))

    fails(different, sirtaki.MismatchError, "allgather on rank 0", "allreduce")
    ones = torch.ones(3)
    dist.all_reduce(ones)
    assert ones.tolist() == [size()] * 3


def case_a_late_rank_is_a_timeout_of_the_wait() -> None:
    if rank() == 0:
        late = torch.ones(1)
        work = dist.all_reduce(late, async_op=True)
        fails(lambda: work.wait(timedelta(seconds=0.2)), RuntimeError, "all_reduce", "0.2 s", "same order")
        sirtaki.torch.barrier()
        work.wait()
    else:
        late = torch.ones(1)
        sirtaki.torch.barrier()
        dist.all_reduce(late)
    assert late.item() == size()


def case_what_does_not_exist_is_said() -> None:
    one = torch.ones(1)
    beside = 'new_group(backend="gloo")'
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        fails(lambda op=op: dist.all_reduce(one.int(), op), NotImplementedError, "ReduceOp.B", "PRODUCT", beside)
    fails(lambda: dist.recv(one), NotImplementedError, beside)
    fails(dist.monitored_barrier, ValueError, "GLOO")
    fails(lambda: dist.all_reduce(torch.ones(1, dtype=torch.float8_e5m2)), ValueError, "float8")
    fails(lambda: dist.new_group(pg_options=object()), NotImplementedError, "pg_options")
    dist.barrier()


def case_arguments_are_checked_here() -> None:
    here, two = f"on rank {rank()}", torch.ones(2)
    for call, *words in (
        (lambda: dist.all_gather([two] * (size() + 1), two), "one tensor for each"),
        (lambda: dist.all_gather([torch.ones(3)] * size(), two), "[3]", "[2]"),
        (lambda: dist.all_gather_single(torch.ones(2 * size() + 1), two), f"{size()} times"),
        (lambda: dist.reduce_scatter_single(two, torch.ones(2 * size() + 1)), f"{size()} times"),
        (lambda: dist.reduce_scatter(two, [torch.ones(3)] * size()), "[3]", "[2]"),
        (lambda: dist.all_to_all_single(two, torch.ones(size() + 1)), "input_split_sizes"),
        (lambda: dist.all_to_all_single(torch.ones(size()), two, None, [3] * size()), "input_split_sizes is [3"),
    ):
        fails(call, ValueError, here, *words)
    takes = torch.zeros(size() + (size() if rank() == 0 else 0))
    call = lambda: dist.all_to_all_single(takes, torch.ones(size()))  # noqa: E731
    if rank() == 0:
        fails(call, ValueError, "rank 0 sent 1 elements to rank 0", "holds 2")
    else:
        call()
    dist.barrier()


def case_groups_of_some_ranks() -> None:
    for ranks in ([0], [0, size() - 1], list(range(1, size()))):
        group = dist.new_group(ranks)
        if rank() not in ranks:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
            continue
        place, count = ranks.index(rank()), len(ranks)
        assert (dist.get_rank(group), dist.get_world_size(group)) == (place, count)
        total = torch.full((3,), float(rank()))
        dist.all_reduce(total, group=group)
        assert total.tolist() == [float(sum(ranks))] * 3
        told = torch.full((2,), float(rank()))
        dist.broadcast(told, ranks[-1], group=group)
        assert told.tolist() == [float(ranks[-1])] * 2
        rows = [torch.zeros(1) for _ in ranks]
        dist.all_gather(rows, torch.full((1,), float(rank())), group=group)
        assert [int(row) for row in rows] == ranks
        part = torch.zeros(1)
        dist.scatter(part, [torch.full((1,), float(r)) for r in ranks] if place == 0 else None, ranks[0], group=group)
        assert int(part) == rank()
        found: list[object] = [None] * count
        dist.all_gather_object(found, rank(), group=group)
        assert found == ranks
        dist.barrier(group=group)
    dist.barrier()


def case_gloo_sub_groups_beside_it() -> None:
    pair = dist.new_group([0, 1], backend="gloo")
    if rank() < 2:
        tensor = torch.full((2,), float(rank()))
        work = dist.all_reduce(tensor, group=pair, async_op=True)
        work.wait()
        assert tensor.tolist() == [1.0, 1.0]
        if rank() == 0:
            dist.send(torch.ones(3), 1, pair)
        else:
            dist.recv(tensor.resize_(3), 0, pair)
            assert tensor.tolist() == [1.0] * 3
    dist.barrier()


def case_the_session_outlives_groups_that_did_not_open_it() -> None:
    dist.destroy_process_group()
    gloo.cache_clear()
    assert sirtaki.is_initialized()
    gloo()
    dist.barrier()
