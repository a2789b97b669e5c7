"""Data parallelism of torch over backend `sirtaki`: gradients are those of one process with all the data."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ranks.error_cases import fails

SEED = int(os.environ.get("SEED", "30"))
ROWS = 6


@cache
def start() -> None:
    """Makes the process group in the first call."""
    print(f"SEED={SEED}")
    dist.init_process_group("sirtaki")


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


class Branches(nn.Module):
    """Several layers, one of which is used only if `both` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Tanh())
        self.main = nn.Linear(30, 3)
        self.side = nn.Linear(30, 3)

    def forward(self, rows: Tensor, both: bool = False) -> Tensor:
        hidden = self.body(rows)
        return self.main(hidden) + self.side(hidden) if both else self.main(hidden)


def plain_model() -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns the rows of all ranks in a step, and their labels."""
    generator = torch.Generator().manual_seed(SEED * 100 + step)
    rows = torch.randn(ROWS * size(), 8, generator=generator)
    return rows, torch.randint(3, (ROWS * size(),), generator=generator)


def mine(tensor: Tensor) -> Tensor:
    return tensor[ROWS * rank() : ROWS * (rank() + 1)]


def whole_model_after(steps: int) -> nn.Module:
    """Returns the model that one process trains on all rows."""
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        rows, labels = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(rows), labels).backward()
        optimizer.step()
    return model


def near(model: nn.Module, other: nn.Module, tolerance: float = 1e-6) -> None:
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, two, atol=tolerance), f"{(one - two).abs().max():g} apart"


def equal_on_all(model: nn.Module) -> None:
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    whole = torch.zeros(size(), flat.numel())
    dist.all_gather_single(whole, flat[None])
    assert all(torch.equal(row, whole[0]) for row in whole)


def train(model: nn.Module, steps: int = 5, made: Callable[[Any], torch.optim.Optimizer] | None = None) -> None:
    parameters = list(model.parameters())
    optimizer = made(parameters) if made else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for step in range(steps):
        rows, labels = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(mine(rows)), mine(labels)).backward()
        optimizer.step()


def case_ddp_trains_as_one_process() -> None:
    start()
    # The buckets hold a few kilobytes, and DDP rebuilds them after the first step.
    model = DistributedDataParallel(plain_model(), bucket_cap_mb=0.003)
    train(model)
    assert model._get_ddp_logging_data().get("has_rebuilt_buckets") == 1
    near(model.module, whole_model_after(5))
    equal_on_all(model.module)


def case_ddp_starts_from_rank_zero() -> None:
    torch.manual_seed(SEED + rank())
    model = DistributedDataParallel(nn.Linear(4, 4))
    equal_on_all(model.module)


def case_ddp_with_views_and_a_static_graph() -> None:
    model = DistributedDataParallel(plain_model(), gradient_as_bucket_view=True, static_graph=True)
    train(model)
    near(model.module, whole_model_after(5))


def case_no_sync_accumulates() -> None:
    model = DistributedDataParallel(plain_model())
    for step in range(2):
        rows, labels = batch(step)
        if step == 0:
            with model.no_sync():
                F.cross_entropy(model(mine(rows)), mine(labels)).backward()
        else:
            F.cross_entropy(model(mine(rows)), mine(labels)).backward()
    whole = plain_model()
    for step in range(2):
        rows, labels = batch(step)
        F.cross_entropy(whole(rows), labels).backward()
    for one, two in zip(model.module.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, atol=1e-6)


def case_unused_parameters() -> None:
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True, bucket_cap_mb=0.003)
    rows = torch.ones(4, 8) + torch.arange(4.0)[:, None]
    for step in range(3):
        model.zero_grad()
        model(rows, both=step == 1 and rank() == 0).sum().backward()
        side = model.module.side.bias.grad
        if step == 1:  # one rank used it: its gradient, divided by the number of ranks
            assert torch.allclose(side, torch.full((3,), 4.0 / size()))
        else:
            assert side is None
        assert torch.allclose(model.module.main.bias.grad, torch.full((3,), 4.0))
    equal_on_all(model.module)


def case_fp16_hook() -> None:
    model = DistributedDataParallel(plain_model(), bucket_cap_mb=0.003)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(model)
    near(model.module, whole_model_after(5), 2e-2)
    equal_on_all(model.module)


def case_a_hook_of_ones_own() -> None:
    sizes = []

    def hook(group, bucket):  # noqa: ANN001, ANN202  (torch compares annotations, which are text here)
        sizes.append(bucket.buffer().numel())
        future = dist.all_reduce(bucket.buffer().div_(size()), group=group, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    model = DistributedDataParallel(plain_model(), bucket_cap_mb=0.003)
    model.register_comm_hook(None, hook)
    train(model)
    assert len(sizes) > 5
    near(model.module, whole_model_after(5))


def case_a_hook_that_starts_collectives_in_callbacks_is_refused() -> None:
    model = DistributedDataParallel(plain_model())

    def hook(_, bucket):  # noqa: ANN001, ANN202
        gate: torch.futures.Future[Tensor] = torch.futures.Future()
        # The result of `gate` is set later, so that its callback never runs here.
        first = dist.all_reduce(bucket.buffer(), async_op=True)

        def again(done: Any) -> Tensor:
            del done
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().wait()[0]

        chained = gate.then(again)
        first._call.on_done(lambda: gate.set_result(bucket.buffer()))
        return chained

    model.register_comm_hook(None, hook)
    rows, labels = batch(0)
    loss = F.cross_entropy(model(mine(rows)), mine(labels))
    fails(loss.backward, RuntimeError, "callback of a future", "powersgd")
    dist.barrier()


def case_join_of_uneven_batches() -> None:
    model = DistributedDataParallel(plain_model(), bucket_cap_mb=0.003)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = 0
    with model.join():
        for step in range(2 + rank()):
            rows, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(mine(rows)), mine(labels)).backward()
            optimizer.step()
            seen += 1
    assert seen == 2 + rank()
    equal_on_all(model.module)

    def end_with_the_first() -> None:
        with Join([model], throw_on_early_termination=True):
            for step in range(2 + rank()):
                model(mine(batch(step)[0])).sum().backward()

    fails(end_with_the_first, RuntimeError, "exhausted")


def case_sparse_embeddings() -> None:
    torch.manual_seed(SEED)
    model = DistributedDataParallel(nn.Embedding(10, 3, sparse=True))
    model(torch.tensor([0, rank() + 1])).sum().backward()
    grad = model.module.weight.grad.to_dense()
    assert torch.allclose(grad[0], torch.ones(3))
    assert all(torch.allclose(grad[r + 1], torch.full((3,), 1.0 / size())) for r in range(size()))


def case_buffers_follow_rank_zero() -> None:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    for step in range(2):
        model(torch.randn(4, 8) + rank() + step).sum().backward()
    model.eval()
    means = model.module.body[3].running_mean
    model.train()
    model(torch.randn(4, 8))
    model._sync_buffers()
    found = torch.zeros(size(), 30)
    dist.all_gather_single(found, means[None])
    assert all(torch.equal(row, found[0]) for row in found)


def case_zero_redundancy_optimizer() -> None:
    model = DistributedDataParallel(plain_model())
    train(model, made=lambda p: ZeroRedundancyOptimizer(p, torch.optim.SGD, lr=0.1, momentum=0.9))
    near(model.module, whole_model_after(5))


def case_fully_shard_trains_as_one_process() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size(),))
    model = plain_model()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model)
    for one, two in zip(model.parameters(), whole_model_after(5).parameters(), strict=True):
        assert torch.allclose(one.full_tensor(), two, atol=1e-6)


def case_hvd_operations_beside_it() -> None:
    import sirtaki.torch as hvd

    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert hvd.allreduce(torch.full((2,), float(rank())), op=hvd.Sum).tolist() == [sum(range(size()))] * 2
    work.wait()


def case_meshes_of_two_dimensions_train() -> None:
    """Tensor parallelism over one dimension of a mesh and fully_shard over the other train as one process does."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    start()
    outer = 2 if size() % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (outer, size() // outer), mesh_dim_names=("dp", "tp"))

    def trained(split: bool) -> list[Tensor]:
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6)).double()
        if split:
            parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
            fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 6, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
        return [p.full_tensor() if split else p.detach() for p in model.parameters()]

    for one, other in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(one, other)
