"""Messages between two ranks over backend `sirtaki` of torch.distributed."""

from __future__ import annotations

from functools import cache

import torch
import torch.distributed as dist

from ranks.error_cases import fails


@cache
def begin() -> None:
    dist.init_process_group("sirtaki")


def rank() -> int:
    begin()
    return dist.get_rank()


def size() -> int:
    begin()
    return dist.get_world_size()


def case_messages_arrive_in_their_order() -> None:
    for number in range(70):  # more messages than the window holds
        if rank() == 0:
            for peer in range(1, size()):
                dist.send(torch.full((3, 2), float(number * peer)), peer)
        else:
            tensor = torch.zeros(2, 3)
            assert dist.recv(tensor, 0) == 0
            assert torch.equal(tensor, torch.full((2, 3), float(number * rank())))


def case_a_ring_without_waiting() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        source = torch.full((5,), rank() + 1).to(dtype)
        target = torch.zeros(5, 2, dtype=dtype)[:, 0]  # a column: not contiguous
        sent = dist.isend(source, (rank() + 1) % size())
        received = dist.irecv(target, (rank() - 1) % size())
        sent.wait()
        received.wait()
        assert torch.equal(target, torch.full((5,), (rank() - 1) % size() + 1).to(dtype))


def case_tags_tell_messages_apart() -> None:
    if rank() == 0:
        works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in range(4)]
    elif rank() == 1:
        tensors = [torch.zeros(1) for _ in range(4)]
        works = [dist.irecv(tensors[tag], 0, tag=tag) for tag in (3, 1, 0, 2)]
    else:
        works = []
    for work in works:
        work.wait()
    if rank() == 1:
        assert sorted(tensor.item() for tensor in tensors) == [0, 1, 2, 3]
        assert [tensors[tag].item() for tag in range(4)] == [0, 1, 2, 3]


def case_batches() -> None:
    sources = [torch.full((4,), float(10 * rank() + peer)) for peer in range(size())]
    targets = [torch.zeros(4) for _ in range(size())]
    others = [peer for peer in range(size()) if peer != rank()]
    ops = [dist.P2POp(dist.isend, sources[peer], peer) for peer in others]
    ops += [dist.P2POp(dist.irecv, targets[peer], peer) for peer in others]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for peer in others:
        assert torch.equal(targets[peer], torch.full((4,), float(10 * peer + rank())))


def case_within_a_group() -> None:
    group = dist.new_group([0, size() - 1])
    if rank() == size() - 1:
        dist.send(torch.arange(6.0), group=group, group_dst=0)
    elif rank() == 0:
        tensor = torch.zeros(6)
        dist.recv(tensor, group=group, group_src=1)
        assert torch.equal(tensor, torch.arange(6.0))
    objects = [{"a": rank()}]
    if rank() == 0:
        dist.send_object_list(objects, 1)
    elif rank() == 1:
        dist.recv_object_list(objects, 0)
        assert objects == [{"a": 0}]
    dist.barrier()


def case_messages_that_do_not_fit_are_told() -> None:
    if rank() == 0:
        fails(lambda: dist.send(torch.ones(3), 1), RuntimeError, "send to rank 1", "[3]", "[4]")
    elif rank() == 1:
        fails(lambda: dist.recv(torch.ones(4), 0), RuntimeError, "recv from rank 0", "[3]", "[4]")
    fails(lambda: dist.recv(torch.ones(1)), NotImplementedError, "give src", "gloo")
    dist.barrier()


def case_the_job_ends() -> None:
    dist.destroy_process_group()
