"""Results on which an unchanged Horovod program relies under `sirtakirun --horovod`.

Right: gradients through collectives have the factors of Horovod; a rank that has joined contributes zeros to operations
by name; sparse gradients that were reduced as dense ones reach the optimizer sparse; environment variables are set
before any import.
"""

import os
import subprocess
import sys


def gradients() -> None:
    import horovod.torch as hvd
    import torch

    size, rank = hvd.size(), hvd.rank()
    own = torch.ones(2, 3, requires_grad=True)
    (hvd.allgather(own, name="gathered") * (rank + 1)).sum().backward()
    mean = sum(range(1, size + 1)) / size
    assert torch.allclose(own.grad, torch.full((2, 3), mean)), own.grad
    sent = torch.ones(3, requires_grad=True)
    (hvd.broadcast(sent, 0, name="sent") * (rank + 1)).sum().backward()
    assert torch.allclose(sent.grad, torch.full((3,), mean if rank == 0 else 0.0)), sent.grad
    for op, factor in ((hvd.Sum, float(size)), (hvd.Average, 1.0)):
        given = torch.ones(2 * size, requires_grad=True)
        hvd.reducescatter(given, op=op, name=f"scattered.{op}").sum().backward()
        assert torch.allclose(given.grad, torch.full((2 * size,), factor)), given.grad


def joined() -> None:
    import horovod.torch as hvd
    import torch

    for step in range(3 + hvd.rank()):
        active = sum(3 + r > step for r in range(hvd.size()))
        total = hvd.allreduce(torch.ones(4), op=hvd.Sum, name="loss")
        assert total.eq(active).all(), (step, total)
    hvd.join()


def sparse() -> None:
    import horovod.torch as hvd
    import torch

    table = torch.nn.Embedding(8, 2, sparse=True)
    hvd.broadcast_parameters(table.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(table.parameters()), table.named_parameters(), sparse_as_dense=True
    )
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([hvd.rank()])).sum().backward()
        optimizer.step()
    assert table.weight.grad.is_sparse
    assert sorted(optimizer._parameter_names.values()) == ["weight"]


def main() -> int:
    if "SIRTAKI_JOB_RANK" in os.environ:
        local, cross = os.environ["HOROVOD_LOCAL_RANK"], os.environ["HOROVOD_CROSS_SIZE"]
        import horovod.torch as hvd

        hvd.init()
        assert os.environ["HOROVOD_RANK"] == str(hvd.rank())
        assert os.environ["HOROVOD_SIZE"] == str(hvd.size())
        assert (local, cross) == (str(hvd.local_rank()), str(hvd.cross_size()))
        for part in (gradients, joined, sparse):
            part()
        hvd.shutdown()
        return 0
    job = ["sirtakirun", "-np", "3", "--horovod", sys.executable, os.path.abspath(__file__)]
    return subprocess.run(job, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
