"""DistributedOptimizer of a process set: as in a smaller job of these ranks, beside other optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sirtaki.torch as hvd
from ranks.error_cases import fails

STEPS = 6
BATCH = 4


def _halves() -> list[hvd.ProcessSet]:
    """Returns two sets that hold every rank between them, and differ in size where possible."""
    first = [rank for rank in range(hvd.size()) if rank % 3 != 1]
    return [hvd.ProcessSet(first), hvd.ProcessSet([rank for rank in range(hvd.size()) if rank not in first])]


def _mine() -> hvd.ProcessSet:
    return next(one for one in _halves() if one.included())


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).double()


def _loss(model: nn.Module, step: int, ranks: Sequence[int]) -> Tensor:
    """Returns the loss over the batches of `ranks`."""
    draws = [torch.Generator().manual_seed(1000 * step + rank) for rank in ranks]
    inputs = torch.cat([torch.randn(BATCH, 7, generator=draw, dtype=torch.float64) for draw in draws])
    labels = torch.cat([torch.randint(0, 3, (BATCH,), generator=draw) for draw in draws])
    return F.cross_entropy(model(inputs), labels)


def _train(ranks: list[int], own: list[int], **options: Any) -> tuple[nn.Module, nn.Module]:
    """Returns a model trained by this rank with others, and one trained alone on the batches of `ranks`."""
    model, reference = _model(), _model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), **options
    )
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        _loss(model, step, own).backward()
        optimizer.step()
        plain.zero_grad()
        _loss(reference, step, ranks).backward()
        plain.step()
    optimizer.wait()
    return model, reference


def _close(model: nn.Module, reference: nn.Module) -> None:
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-11, atol=1e-11), (p - q).abs().max()


def _same_in_set(model: nn.Module, process_set: hvd.ProcessSet) -> None:
    flat = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    gathered = hvd.allgather(flat, process_set=process_set)
    assert torch.equal(gathered, gathered[:1].expand_as(gathered))


def case_sets_train_side_by_side() -> None:
    process_set = _mine()
    for options in ({}, {"sync": "step"}, {"sync": "forward"}, {"gradient_predivide_factor": 2.0}):
        model, reference = _train(process_set.ranks, [hvd.rank()], process_set=process_set, **options)
        _close(model, reference)
        _same_in_set(model, process_set)


def case_all_ranks_at_once_with_sets() -> None:
    """One parameter belongs to all ranks, another to the set, as experts do beside shared layers."""
    process_set = _mine()
    everybody = list(range(hvd.size()))
    shared, expert = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(3))
    one = hvd.DistributedOptimizer(torch.optim.SGD([shared], lr=1.0), [("shared", shared)], op=hvd.Sum)
    two = hvd.DistributedOptimizer(
        torch.optim.SGD([expert], lr=1.0), [("expert", expert)], op=hvd.Sum, process_set=process_set
    )
    for step in range(1, STEPS):
        one.zero_grad()
        two.zero_grad()
        ((shared.sum() + expert.sum()) * (hvd.rank() + 1)).backward()
        one.step()
        two.step()
        assert torch.equal(shared.detach(), torch.full((5,), -float(step * sum(rank + 1 for rank in everybody))))
        assert torch.equal(expert.detach(), torch.full((3,), -float(step * sum(r + 1 for r in process_set.ranks))))


def case_a_rank_outside_trains_alone() -> None:
    process_set = hvd.ProcessSet([0])
    model, reference = _train([hvd.rank()], [hvd.rank()], process_set=process_set)
    _close(model, reference)


def case_unused_parameters_and_sparse_gradients() -> None:
    process_set = _mine()
    table, spare = nn.Embedding(6, 2, sparse=True), nn.Parameter(torch.ones(3))
    named = [("table", table.weight), ("spare", spare)]
    before = table.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([p for _, p in named], lr=1.0), named, op=hvd.Sum, process_set=process_set
    )
    for step in range(3):
        optimizer.zero_grad()
        loss = table(torch.tensor([process_set.rank()])).sum()
        if process_set.rank() == 0 and step > 0:
            loss = loss + spare.sum()
        loss.backward()
        optimizer.step()
    expected = torch.zeros(6, 2)
    expected[: process_set.size()] = -3.0
    assert torch.allclose(table.weight.detach() - before, expected, atol=1e-6)
    assert torch.equal(spare.detach(), torch.full((3,), -1.0))


def case_compression_within_a_set() -> None:
    process_set = _mine()
    for compression in (hvd.Compression.fp16, "int8", "group_topk:rate=0.25", "twobit", "powersgd:rank=1", "auto"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05),
            model.named_parameters(),
            compression=compression,
            process_set=process_set,
        )
        draw = torch.Generator().manual_seed(hvd.rank())
        first = last = 0.0
        for step in range(12):
            optimizer.zero_grad()
            inputs = torch.randn(16, 64, generator=draw)
            loss = F.cross_entropy(model(inputs), (inputs.sum(1) > 0).long())
            loss.backward()
            optimizer.step()
            first, last = (loss.item() if step == 0 else first), loss.item()
        optimizer.flush()
        assert last < first, (compression, first, last)
        _same_in_set(model, process_set)


class _Doubling:
    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, None]:
        return tensor * 2, None

    @staticmethod
    def decompress(tensor: Tensor, _: None) -> Tensor:
        return tensor / 2


def case_a_compressor_of_the_programs_own() -> None:
    process_set = _mine()
    model, reference = _train(process_set.ranks, [hvd.rank()], process_set=process_set, compression=_Doubling)
    _close(model, reference)


def case_what_is_owed_stays_in_the_set() -> None:
    process_set = _mine()
    if process_set.size() == 1:  # nothing is compressed, so there is no residual
        return
    torch.manual_seed(1)
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0),
        [("weight", weight)],
        compression="group_topk:rate=0.05",
        process_set=process_set,
    )
    total = torch.zeros(64, 64)
    for step in range(4):
        optimizer.zero_grad()
        draws = [torch.Generator().manual_seed(100 * step + rank) for rank in process_set.ranks]
        given = [torch.randn(64, 64, generator=draw) for draw in draws]
        (weight * given[process_set.rank()]).sum().backward()
        optimizer.step()
        total -= sum(given) / process_set.size()
    state = optimizer.gather_state()["sirtaki"]
    assert state["size"] == process_set.size()
    assert torch.allclose(weight.detach() - state["owed"]["weight"] / process_set.size(), total, atol=1e-4)
    optimizer.flush()
    assert torch.allclose(weight.detach(), total, atol=1e-4)


def case_a_deviation_ends_the_step_of_the_set_alone() -> None:
    process_set = hvd.ProcessSet([0, hvd.size() - 1])
    everybody, some, more = (nn.Parameter(torch.zeros(4)) for _ in range(3))
    one = hvd.DistributedOptimizer(torch.optim.SGD([everybody], lr=1.0), [("everybody", everybody)], op=hvd.Sum)
    two = hvd.DistributedOptimizer(
        torch.optim.SGD([some, more], lr=1.0),
        [("some", some), ("more", more)],
        op=hvd.Sum,
        sync="step",
        process_set=process_set,
    )

    def out_of_memory(_: Tensor) -> None:
        raise RuntimeError("out of memory")

    def step(fail: bool) -> None:
        two.zero_grad()
        loss = some.sum() + more.sum()
        if fail and hvd.rank() == 0:
            # A backward pass that succeeds would contribute zeros for its missing gradients.
            hook = more.register_hook(out_of_memory)
            with contextlib.suppress(RuntimeError):
                loss.backward()
            hook.remove()
        else:
            loss.backward()
        if fail:
            hvd.barrier(process_set=process_set)  # the other ranks must have begun the step to notice that it fails
        if fail and hvd.rank() == 0:
            two._sirtaki.give_up("out of memory")
            return
        two.step()

    if process_set.included():
        step(False)
        if hvd.rank() == 0:
            step(True)
        else:
            fails(lambda: step(True), hvd.HorovodInternalError, "rank 0", "out of memory")
            two.zero_grad()
        step(False)
        assert torch.equal(some.detach(), torch.full((4,), -4.0))
    everybody.sum().backward()
    one.step()
    assert torch.equal(everybody.detach(), torch.full((4,), -float(hvd.size())))


def case_join_and_sets_do_not_go_together() -> None:
    process_set = _mine()
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=1.0), [("p", parameter)], process_set=process_set
    )
    parameter.sum().backward()
    optimizer.step()
    hvd.barrier()
    if process_set.size() > 1:
        fails(hvd.join, NotImplementedError, "of a process set", "delete its optimizer")


def case_local_updates_of_two_sets() -> None:
    torch.manual_seed(3)
    model = nn.Linear(7, 3)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.1),
        model.named_parameters(),
        process_set=_mine(),
        local_updates=hvd.LocalUpdates("fixed:steps=2,delay=1", optimizer_state=1),
    )
    for step in range(7):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.full((2, 7), float(hvd.rank() + step))), torch.tensor([0, 1])).backward()
        optimizer.step()
    optimizer.drain()
    mine = torch.cat([p.detach().flatten() for p in model.parameters()]).view(1, -1)
    models = hvd.allgather(mine)
    for one in _halves():
        assert all(torch.equal(models[rank], models[one.ranks[0]]) for rank in one.ranks)
    assert hvd.size() == 1 or not torch.equal(models[_halves()[0].ranks[0]], models[_halves()[1].ranks[0]])
