"""join(): ranks with different numbers of batches, against one process that computes all of them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import sirtaki.torch as hvd
from ranks.error_cases import fails


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).double()


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return model(torch.randn(4, 7, generator=generator, dtype=torch.float64)).square().mean()


def batches_of(rank: int, epoch: int) -> int:
    return 1 + (rank * 2 + epoch * 3) % 5


def reference_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Trains as all ranks together train the model of the rank with the most batches."""
    for step in range(max(batches_of(rank, epoch) for rank in range(hvd.size()))):
        optimizer.zero_grad()
        for rank in range(hvd.size()):
            if step < batches_of(rank, epoch):
                (loss_of(model, rank, 10 * epoch + step) / hvd.size()).backward()
        optimizer.step()


def train_unevenly(sync: str) -> None:
    model = make_model()
    reference = copy.deepcopy(model)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), sync=sync
    )
    for epoch in range(3):
        for step in range(batches_of(hvd.rank(), epoch)):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), 10 * epoch + step).backward()
            optimizer.step()
        last = hvd.join()
        most = max(batches_of(rank, epoch) for rank in range(hvd.size()))
        assert batches_of(last, epoch) == most, (
            f"rank {last} came last with {batches_of(last, epoch)} of {most} batches"
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        reference_epoch(reference, plain, epoch)
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=1e-12, atol=1e-12), (p - q).abs().max()
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        gathered = hvd.allgather(flat.unsqueeze(0))
        assert torch.equal(gathered, gathered[:1].expand_as(gathered))


def case_uneven_epochs_in_backward() -> None:
    train_unevenly("backward")


def case_uneven_epochs_in_step() -> None:
    train_unevenly("step")


def case_uneven_epochs_in_forward() -> None:
    train_unevenly("forward")


def case_ranks_with_the_same_steps_stay_bit_equal() -> None:
    """Ranks that made every step need no broadcast."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    steps = 2 if hvd.rank() == 0 else 6
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
    last = hvd.join()
    assert (last != 0) == (hvd.size() > 1)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    gathered = hvd.allgather(flat.unsqueeze(0))
    done = gathered[1:] if hvd.size() > 1 else gathered
    assert torch.equal(done, done[:1].expand_as(done))


def case_unused_parameters_stay_unused() -> None:
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(1 if hvd.rank() == 0 else 4):
        optimizer.zero_grad()
        out = model[0](torch.ones(1, 3)) if step else model[1](model[0](torch.ones(1, 3)))
        out.sum().backward()
        optimizer.step()
        assert model[2].weight.grad is None
        assert (model[1].weight.grad is None) == (step > 0), f"step {step}"
    hvd.join()
    hvd.barrier()


def case_operations_by_name_go_on_without_a_rank_that_has_joined() -> None:
    hvd.allreduce(torch.ones(1), name="joined.metric")
    others = hvd.size() - 1
    if hvd.rank() != 0:
        for _ in range(2):
            assert hvd.allreduce(torch.ones(1), name="joined.metric", op=hvd.Sum).item() == others
            assert hvd.allreduce(torch.full((3,), 2.0)).tolist() == [2.0 * others / hvd.size()] * 3
            assert [t.item() for t in hvd.grouped_allreduce([torch.ones(1)] * 2, op=hvd.Sum)] == [others] * 2
            handle = hvd.allreduce_async(torch.ones(2, dtype=torch.int64), name="joined.async", op=hvd.Sum)
            assert hvd.synchronize(handle).tolist() == [others] * 2
            assert hvd.allgather(torch.full((2, 3), hvd.rank())).shape == (2 * others, 3)
            sparse = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1), (4,))
            total = hvd.sparse_allreduce_async(sparse, name="joined.sparse", op=hvd.Sum)()
            assert total.to_dense().tolist() == [0, others, 0, 0]
            assert hvd.broadcast(torch.full((2,), float(hvd.rank())), 1, name="joined.from1").tolist() == [1.0, 1.0]
            root = lambda: hvd.broadcast(torch.ones(1), 0, name="joined.from0")  # noqa: E731
            fails(root, hvd.HorovodInternalError, "rank 0", "root", "join()", "joined.from0", within=30.0)
            least = lambda: hvd.allreduce(torch.ones(1), name="joined.least", op=hvd.Min)  # noqa: E731
            fails(least, hvd.HorovodInternalError, "rank 0", "join()", "joined.least", within=30.0)
            hvd.barrier()
    hvd.join()
    for _ in range(2):
        assert hvd.allreduce(torch.ones(1), name="joined.metric", op=hvd.Sum).item() == hvd.size()
    hvd.barrier()


def case_gradients_without_a_step_are_refused() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), sync="step"
    )
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, 0, 0).backward()
        if hvd.size() > 1 and optimizer._sirtaki.in_flight:
            fails(hvd.join, ValueError, "step()", f"rank {hvd.rank()}")
        optimizer.step()
    assert hvd.join() in range(hvd.size())
