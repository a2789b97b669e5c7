"""Operations of process sets, beside those of all ranks."""

from __future__ import annotations

from itertools import combinations

import torch

import sirtaki.torch as hvd
from ranks.error_cases import fails


def _sets() -> list[hvd.ProcessSet]:
    """Returns every non-empty set of ranks, the set of all ranks included."""
    size = hvd.size()
    return [hvd.ProcessSet(ranks) for count in range(1, size + 1) for ranks in combinations(range(size), count)]


def _value(rank: int) -> torch.Tensor:
    return torch.arange(6, dtype=torch.float32) + 10 * rank


def case_every_operation_of_every_set() -> None:
    for process_set in _sets():
        ranks = process_set.ranks
        if not process_set.included():
            continue
        me, mine = process_set.rank(), _value(hvd.rank())
        total = sum(_value(rank) for rank in ranks)
        assert torch.equal(hvd.allreduce(mine, op=hvd.Sum, process_set=process_set), total)
        assert torch.equal(hvd.allreduce(mine, process_set=process_set), total / len(ranks))
        assert torch.equal(hvd.broadcast(mine, ranks[-1], process_set=process_set), _value(ranks[-1]))
        gathered = hvd.allgather(mine[: me + 1], process_set=process_set)
        assert torch.equal(gathered, torch.cat([_value(rank)[: place + 1] for place, rank in enumerate(ranks)]))
        rows = torch.full((len(ranks),), float(hvd.rank()))
        received = hvd.alltoall(rows, process_set=process_set)
        assert torch.equal(received, torch.tensor(ranks, dtype=torch.float32))
        output, counts = hvd.alltoall(rows, [1] * len(ranks), process_set=process_set)
        assert torch.equal(output, received)
        assert counts.tolist() == [1] * len(ranks)
        block = hvd.reducescatter(torch.ones(len(ranks), 2), op=hvd.Sum, process_set=process_set)
        assert torch.equal(block, torch.full((1, 2), float(len(ranks))))
        first, second = hvd.grouped_allreduce([mine, 2 * mine], op=hvd.Sum, process_set=process_set)
        assert torch.equal(second, 2 * first)
        assert hvd.allgather_object(hvd.rank(), process_set=process_set) == ranks
        assert hvd.broadcast_object(hvd.rank(), ranks[0], process_set=process_set) == ranks[0]
        hvd.barrier(process_set=process_set)
    assert torch.equal(hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.tensor([float(hvd.size())]))


def case_sets_use_one_name_at_once() -> None:
    mine = [process_set for process_set in _sets() if process_set.included()]
    for _ in range(3):
        handles = [hvd.allreduce_async(torch.ones(5), op=hvd.Sum, name="same", process_set=one) for one in mine]
        for one, handle in zip(mine, handles, strict=True):
            assert torch.equal(hvd.synchronize(handle), torch.full((5,), float(one.size())))


def case_gradients_stay_in_the_set() -> None:
    process_set = hvd.ProcessSet([0, hvd.size() - 1])
    if not process_set.included():
        return
    count = process_set.size()
    x = torch.full((count,), float(hvd.rank() + 1), requires_grad=True)
    (hvd.allreduce(x, op=hvd.Sum, process_set=process_set) * (hvd.rank() + 1)).sum().backward()
    assert torch.equal(x.grad, torch.full((count,), float(sum(rank + 1 for rank in process_set.ranks))))
    x.grad = None
    mean = sum(rank + 1 for rank in process_set.ranks) / count
    for gather in (hvd.allgather, lambda x, process_set: hvd.grouped_allgather([x], process_set=process_set)[0]):
        (gather(x, process_set=process_set) * (hvd.rank() + 1)).sum().backward()
        assert torch.equal(x.grad, torch.full((count,), mean))
        x.grad = None
    for op, factor in ((hvd.Average, 1.0), (hvd.Sum, float(count))):
        hvd.reducescatter(x, op=op, process_set=process_set).sum().backward()
        assert torch.equal(x.grad, torch.full((count,), factor))
        x.grad = None
    (hvd.broadcast(x, hvd.size() - 1, process_set=process_set) * (hvd.rank() + 1)).sum().backward()
    assert torch.equal(x.grad, torch.full((count,), mean if hvd.rank() == hvd.size() - 1 else 0.0))


def case_sets_have_ids() -> None:
    one = hvd.add_process_set([0])
    two = hvd.add_process_set(hvd.ProcessSet([hvd.size() - 1, 0]))
    assert (one.process_set_id, two.process_set_id) == (1, 2)
    everybody = list(range(hvd.size()))
    assert hvd.get_process_set_ids_and_ranks() == {0: everybody, 1: [0], 2: [0, hvd.size() - 1]}
    fails(lambda: hvd.add_process_set([0]), ValueError, "has been added before")
    assert hvd.remove_process_set(one)
    assert not hvd.remove_process_set(one)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert hvd.remove_process_set(two)
    assert hvd.global_process_set.size() == hvd.size()
    assert hvd.global_process_set.rank() == hvd.rank()


def case_what_cannot_be_is_said_at_once() -> None:
    others = hvd.ProcessSet([rank for rank in range(hvd.size()) if rank != hvd.rank()])
    fails(lambda: hvd.allreduce(torch.ones(1), process_set=others), ValueError, "not in the process set")
    fails(others.rank, ValueError, "is not in ProcessSet")
    far = hvd.ProcessSet([0, hvd.size()])
    fails(lambda: hvd.barrier(process_set=far), ValueError, "does not have")
    fails(lambda: hvd.ProcessSet([]), ValueError, "each once")
    fails(lambda: hvd.ProcessSet([1, 1]), ValueError, "each once")
    fails(lambda: hvd.ProcessSet([-1]), ValueError, "from 0 on")
    mine = hvd.ProcessSet([hvd.rank()])
    missing = (hvd.rank() + 1) % hvd.size()
    fails(lambda: hvd.broadcast(torch.ones(1), missing, process_set=mine), ValueError, "not in the process set")
    fails(lambda: hvd.allreduce(torch.ones(1), name="x of ranks 0, 1"), ValueError, "means a process set")
    parameter = torch.nn.Parameter(torch.ones(1))
    plain = torch.optim.SGD([parameter], lr=0.1)
    fails(lambda: hvd.DistributedOptimizer(plain, process_set=far), ValueError, "does not have")
    fails(lambda: hvd.DistributedOptimizer(plain, process_set=[0]), ValueError, "must be a ProcessSet")


def case_a_mismatch_names_the_set() -> None:
    process_set = hvd.ProcessSet([0, hvd.size() - 1])
    if process_set.included():
        tensor = torch.ones(2 + process_set.rank())
        fails(
            lambda: hvd.allreduce(tensor, name="grad", process_set=process_set),
            hvd.HorovodInternalError,
            "grad of ranks 0, " if hvd.size() > 2 else "grad",
        )
    hvd.barrier()
