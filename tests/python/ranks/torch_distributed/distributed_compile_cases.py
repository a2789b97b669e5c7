"""torch.compile around DistributedDataParallel and collectives, tensors of rare dtypes, asynchronous checkpoints."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sirtaki.torch as hvd
from ranks.dtype_cases import DTYPES, Spectral, bits, complex_of, some, train_like_one
from ranks.error_cases import fails
from ranks.torch_distributed.distributed_cases import gloo, numbers, rank, size


def model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def trained(step: Callable[[nn.Module, Any, Tensor], None]) -> list[Tensor]:
    """Returns the weights after three calls of `step(model, optimizer, batch)`."""
    made = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    for number in range(3):
        step(made, optimizer, numbers(4, 6, dtype=torch.float64, salt=number))
    return [p.detach() for p in made.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


def plain_step(made: nn.Module, optimizer: Any, batch: Tensor) -> None:
    optimizer.zero_grad()
    made(batch).square().mean().backward()
    optimizer.step()


def case_a_compiled_ddp_model_trains() -> None:
    gloo()
    wanted = trained(plain_step)
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        compiled: dict[int, Any] = {}

        def step(made: nn.Module, optimizer: Any, batch: Tensor, backend: str = backend, known: Any = compiled) -> None:
            plain_step(known.setdefault(id(made), torch.compile(made, backend=backend)), optimizer, batch)

        equal(trained(step), wanted)


def case_a_compiled_step_may_call_collectives() -> None:
    torch._dynamo.reset()

    def step(made: nn.Module, optimizer: Any, batch: Tensor) -> None:
        plain_step(made, optimizer, batch)
        total = batch.sum()
        dist.all_reduce(total)
        dist.barrier()

    equal(trained(torch.compile(step, backend="eager")), trained(plain_step))


def collectives(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y, async_op=True).wait()
    parts = [torch.empty_like(y) for _ in range(size())]
    dist.all_gather(parts, y)
    dist.broadcast(y, 0)
    block = torch.empty(y.numel() // size())
    dist.reduce_scatter_tensor(block, y)
    turned = torch.empty_like(y)
    dist.all_to_all_single(turned, y)
    return block.sum() + sum(parts).sum() + turned.sum()


def case_compiled_collectives_are_the_plain_ones() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(collectives, backend="eager")
    for number in range(3):
        x = numbers(4 * size(), salt=number)
        assert torch.equal(compiled(x), collectives(x))


def case_functional_collectives_are_one_graph() -> None:
    torch._dynamo.reset()
    everyone = dist.group.WORLD

    def both(x: Tensor) -> Tensor:
        return functional.all_reduce(x * 2, "sum", everyone) + functional.all_gather_tensor(x, 0, everyone).sum()

    x = numbers(3)
    assert torch.equal(torch.compile(both, backend="aot_eager", fullgraph=True)(x), both(x))


def case_operations_by_name_run_in_a_compiled_function() -> None:
    torch._dynamo.reset()

    def both(x: Tensor) -> Tensor:
        total = hvd.allreduce(x * 2, name="compiled.sum", op=hvd.Sum)
        return hvd.allgather(total, name="compiled.gather").sum()

    x = numbers(3)
    assert torch.equal(torch.compile(both, backend="eager")(x), both(x))


# ---- rare types ----


def case_collectives_move_every_type() -> None:
    ranks, here = range(size()), rank()
    for dtype in DTYPES:
        tensor = some(dtype, here)
        dist.broadcast(tensor, size() - 1)
        assert bits(tensor) == bits(some(dtype, size() - 1)), dtype
        own = some(dtype, here)
        parts = [torch.empty_like(own) for _ in ranks]
        dist.all_gather(parts, own)
        assert [bits(part) for part in parts] == [bits(some(dtype, r)) for r in ranks], dtype
        gathered = [torch.empty_like(own) for _ in ranks] if here == 0 else None
        dist.gather(own, gathered, 0)
        assert gathered is None or [bits(part) for part in gathered] == [bits(some(dtype, r)) for r in ranks], dtype
        target = torch.empty_like(own)
        dist.scatter(target, [some(dtype, r) for r in ranks] if here == 0 else None, 0)
        assert bits(target) == bits(own), dtype
        dist.all_to_all(parts, [some(dtype, here) for _ in ranks])
        assert [bits(part) for part in parts] == [bits(some(dtype, r)) for r in ranks], dtype
        if here == 0:
            dist.send(some(dtype, 0), 1)
        elif here == 1:
            dist.recv(target, 0)
            assert bits(target) == bits(some(dtype, 0)), dtype


def case_complex_numbers_are_summed_for_callers_in_cpp() -> None:
    """dist.all_reduce() views complex tensors as real ones; callers in C++ pass complex tensors to the group."""
    group = dist.group.WORLD
    every = [complex_of(torch.complex64, r, 2 * size()) for r in range(size())]
    tensor = every[rank()].clone()
    group.allreduce([tensor]).wait()
    assert torch.equal(tensor, sum(every))
    block = torch.empty(2, dtype=torch.complex64)
    group.reduce_scatter([block], [list(every[rank()].split(2))]).wait()
    assert torch.equal(block, sum(every)[2 * rank() : 2 * rank() + 2])
    summed = functional.all_reduce(every[rank()], "sum", group)
    assert torch.equal(summed, sum(every))
    fails(lambda: group.allreduce([tensor], dist.ReduceOp.MAX), ValueError, "complex64", "Sum", f"rank {rank()}")


def case_ddp_trains_complex_weights() -> None:
    def distribute(made: nn.Module) -> tuple[Any, nn.Module]:
        wrapped = DistributedDataParallel(made)
        return torch.optim.Adam(wrapped.parameters(), lr=0.1), wrapped

    train_like_one(distribute)


def case_ddp_equalises_buffers_of_every_type() -> None:
    made = Spectral()
    for dtype in DTYPES:
        made.register_buffer(f"b_{str(dtype)[6:]}", some(dtype, rank()))
    DistributedDataParallel(made)
    for dtype in DTYPES:
        assert bits(getattr(made, f"b_{str(dtype)[6:]}")) == bits(some(dtype, 0)), dtype


# ---- checkpoints ----


def case_checkpoints_are_saved_beside_the_training() -> None:
    beside = dist.new_group()
    assert torch.device("cpu") in beside._device_types
    made = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(made.parameters())
    plain_step(made, optimizer, numbers(4, 6, dtype=torch.float64))
    folder: list[Any] = [tempfile.mkdtemp() if rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    place = os.path.join(folder[0], "one")
    saved = dcp.async_save({"model": made.state_dict()}, checkpoint_id=place, process_group=beside)
    before = [p.detach().clone() for p in made.parameters()]
    for number in range(3):
        plain_step(made, optimizer, numbers(4, 6, dtype=torch.float64, salt=number))
    saved.result(timeout=60)
    state = made.state_dict()
    dcp.load({"model": state}, checkpoint_id=place)
    made.load_state_dict(state)
    equal([p.detach() for p in made.parameters()], before)
