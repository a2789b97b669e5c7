"""Programs written for plain torch, with one line changed or none.

Right: DDP compiles; buffers and weights of every type are broadcast and trained; the default dtype and device of the
program do not affect the runtime; an optimizer created in a derived class works; sharded parameters are refused at
once.
"""

import os
import subprocess
import sys


def compiled_ddp() -> None:
    import torch
    import torch.distributed as dist

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    step = torch.compile(model, backend="eager")
    for _ in range(2):
        step(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
    mean = sum(range(dist.get_world_size())) / dist.get_world_size()
    assert torch.allclose(model.module.weight.grad, torch.full((2, 2), 2 * mean)), model.module.weight.grad


def rare_types() -> None:
    import torch

    import sirtaki.torch as hvd

    for dtype in (torch.complex64, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn):
        mine = torch.full((4,), hvd.rank() + 1.0, dtype=torch.float32).to(dtype)
        got = hvd.broadcast(mine, 1, name=f"rare.{dtype}")
        assert got.dtype is dtype
        assert got.view(torch.uint8).eq(torch.full((4,), 2.0).to(dtype).view(torch.uint8)).all(), (dtype, got)
    total = hvd.allreduce(torch.full((2,), 1j, dtype=torch.complex64), op=hvd.Sum, name="complex")
    assert total.eq(1j * hvd.size()).all(), total


def default_type() -> None:
    import torch

    import sirtaki.torch as hvd

    torch.set_default_dtype(torch.float64)
    try:
        layer = torch.nn.Linear(2, 2).float()
        hvd.broadcast_parameters(layer.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), layer.named_parameters())
        layer(torch.ones(1, 2, dtype=torch.float32)).sum().backward()
        optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)


def derived_class() -> None:
    import torch

    import sirtaki.torch as hvd

    layer = torch.nn.Linear(2, 2)
    hvd.broadcast_parameters(layer.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), layer.named_parameters())
    derived = type("Derived", (type(optimizer),), {})
    optimizer.__class__ = derived
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def sharded() -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    import sirtaki
    import sirtaki.torch as hvd

    mesh = init_device_mesh("cpu", (hvd.size(),))
    part = torch.nn.Parameter(distribute_tensor(torch.ones(2, 2), mesh, [Shard(0)]))
    try:
        hvd.DistributedOptimizer(torch.optim.SGD([part], lr=0.1), [("part", part)])
    except (sirtaki.errors.SirtakiError, ValueError) as error:
        text = str(error)
    else:
        raise AssertionError("parts of parameters are taken for whole ones")
    assert "part" in text, text


def main() -> int:
    if "SIRTAKI_JOB_RANK" not in os.environ:
        job = ["sirtakirun", "-np", "2", sys.executable, os.path.abspath(__file__)]
        return subprocess.run(job, check=False).returncode
    import torch.distributed as dist

    import sirtaki.torch as hvd

    hvd.init()
    dist.init_process_group("sirtaki")
    for part in (compiled_ddp, rare_types, default_type, derived_class, sharded):
        part()
        print(f"{part.__name__}: right", flush=True)
    dist.destroy_process_group()
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
