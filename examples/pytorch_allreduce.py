"""A tour of the operations, with the inputs and the results of each.

sirtakirun -np 4 python examples/pytorch_allreduce.py
"""

from __future__ import annotations

import torch

import sirtaki.torch as hvd


def show(what: str, value: object) -> None:
    """Prints on rank 0 alone."""
    if hvd.rank() == 0:
        print(f"{what:<42} {value}", flush=True)


def reductions(rank: int, size: int) -> None:
    ones = torch.full((3,), float(rank + 1))
    show("allreduce, average of rank + 1", hvd.allreduce(ones, name="average").tolist())
    show("allreduce, sum", hvd.allreduce(ones, op=hvd.Sum, name="sum").tolist())
    show("allreduce, min and max", [hvd.allreduce(ones, op=op)[0].item() for op in (hvd.Min, hvd.Max)])
    total = sum(range(1, size + 1))
    assert hvd.allreduce(ones, op=hvd.Sum)[0].item() == total
    halves = hvd.reducescatter(torch.arange(2.0 * size), op=hvd.Sum)
    show("reducescatter, rank 0's part of the sum", halves.tolist())


def movements(rank: int, size: int) -> None:
    rows = torch.full((rank + 1, 2), rank)
    show("allgather, rank r gives r + 1 rows", hvd.allgather(rows, name="rows")[:, 0].tolist())
    show("broadcast from the last rank", hvd.broadcast(torch.tensor([rank]), root_rank=size - 1).item())
    show("broadcast_object", hvd.broadcast_object({"lr": 0.1, "from": rank}, root_rank=0))
    received, splits = hvd.alltoall(torch.arange(size) + 10 * rank, splits=torch.ones(size, dtype=torch.int32))
    show("alltoall, one element to each rank", f"{received.tolist()} in parts {splits.tolist()}")


def in_flight(rank: int) -> None:
    """Starts several operations and waits for them in another order."""
    handles = [hvd.allreduce_async(torch.full((1000,), float(rank + i)), name=f"async.{i}") for i in range(4)]
    results = [hvd.synchronize(handle)[0].item() for handle in reversed(handles)]
    show("four allreduces in flight", results[::-1])
    weights = torch.full((2,), float(rank), requires_grad=True)
    hvd.allreduce(weights, op=hvd.Sum).sum().backward()
    assert weights.grad is not None
    show("gradient through an allreduce", weights.grad.tolist())


def main() -> None:
    hvd.init()
    show("ranks, ranks on this host", [hvd.size(), hvd.local_size()])
    reductions(hvd.rank(), hvd.size())
    movements(hvd.rank(), hvd.size())
    in_flight(hvd.rank())
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main()
