# ruff: noqa: PT017  (no pytest on the ranks)
"""Sessions that open, end and open again, forks and signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import torch

import sirtaki
import sirtaki.torch as hvd
from sirtaki import _core, errors


def case_reinitialises_a_hundred_times() -> None:
    hvd.shutdown()
    seconds = []
    for i in range(100):
        begin = time.monotonic()
        hvd.init()
        seconds.append(time.monotonic() - begin)
        assert hvd.allreduce(torch.ones(1), name=f"again.{i}", op=hvd.Sum).item() == hvd.size()
        hvd.shutdown()
        assert not hvd.is_initialized()
    hvd.init()
    seconds.sort()
    print(f"init: median {1000 * seconds[50]:.1f} ms, longest {1000 * seconds[-1]:.1f} ms", flush=True)


def case_an_optimizer_survives_reinitialisation() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for _ in range(3):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.full((1, 2), hvd.rank() + 1.0)).sum().backward()
            optimizer.step()
        assert torch.allclose(model.weight.grad, torch.full((1, 2), sum(range(1, hvd.size() + 1)) / hvd.size()))
        hvd.shutdown()
        hvd.init()


def case_results_and_handles_outlive_their_session() -> None:
    kept = hvd.allgather(torch.full((1000,), 1.0))
    handle = hvd.allreduce_async(torch.ones(1), name="never.met") if hvd.rank() == 0 else None
    hvd.shutdown()
    assert kept.sum().item() == 1000 * hvd_size_before(kept)
    if handle is not None:
        try:
            handle.wait()
        except hvd.HorovodInternalError:
            pass
        else:
            raise AssertionError("no error")
    try:
        hvd.allreduce(torch.ones(1))
    except ValueError as error:
        assert "init()" in str(error)
    else:
        raise AssertionError("no error")
    hvd.init()
    del kept
    hvd.barrier()


def hvd_size_before(kept: torch.Tensor) -> int:
    return kept.numel() // 1000


def _child(queue: multiprocessing.SimpleQueue) -> None:  # type: ignore[type-arg]
    answers = [hvd.is_initialized()]
    for call in (hvd.rank, lambda: hvd.allreduce(torch.ones(1)), hvd.init):
        try:
            call()
            answers.append("no error")
        except (ValueError, hvd.HorovodInternalError):
            answers.append("error")
    hvd.shutdown()
    queue.put(answers)


def case_a_forked_child_sees_no_session() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert queue.get() == [False, "error", "error", "error"]
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


class _Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index))


def case_data_loader_workers_do_not_disturb() -> None:
    loader = torch.utils.data.DataLoader(_Rows(), batch_size=2, num_workers=2)
    for i, rows in enumerate(loader):
        assert hvd.allreduce(rows, name=f"rows.{i}").shape == (2, 2)


def case_ctrl_c_interrupts_a_wait() -> None:
    if hvd.size() == 1:
        return
    hvd.barrier()
    if hvd.rank() == 0:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        begin = time.monotonic()
        handle = hvd.allreduce_async(torch.ones(1), name="interrupted", op=hvd.Sum)
        try:
            hvd.synchronize(handle)
        except KeyboardInterrupt:
            assert time.monotonic() - begin < 1.0
        else:
            raise AssertionError("not interrupted")
        hvd.allreduce(torch.ones(1), name="interrupted.go")
    else:
        hvd.allreduce(torch.ones(1), name="interrupted.go")
        handle = hvd.allreduce_async(torch.ones(1), name="interrupted", op=hvd.Sum)
    assert hvd.synchronize(handle).item() == hvd.size()


def case_ctrl_c_while_a_stream_opens() -> None:
    """In the first step one rank is late, and the other retries after Ctrl-C, as a user does in a notebook."""
    if hvd.size() == 1:
        return
    for tries in range(1, 3):
        model = torch.nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        hvd.barrier()
        for _ in range(tries if hvd.rank() == 0 else 0):
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            try:
                model(torch.ones(1, 2)).sum().backward()
            except KeyboardInterrupt:
                optimizer.zero_grad()
            else:
                raise AssertionError("not interrupted")
        hvd.allreduce(torch.ones(1), name=f"opening.go.{tries}")
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.full((1, 2), hvd.rank() + 1.0)).sum().backward()
            assert model.weight.grad is not None
            assert torch.equal(model.weight.grad, torch.full((1, 2), (hvd.size() + 1) / 2))
            optimizer.step()


def case_ctrl_c_while_a_stream_is_agreed() -> None:
    if hvd.size() == 1:
        return
    grad = torch.ones(4)
    tensors = [(0, 8, 0, 0, [4], None)]

    def open_stream() -> Any:
        return _core.Stream("interrupted.opening", ["a"], tensors, None, (int(hvd.Sum), 1.0, 1.0, None, 0))

    hvd.barrier()
    if hvd.rank() == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            open_stream()
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("not interrupted")
    hvd.barrier()
    stream = open_stream()
    stream.ready(0, grad.data_ptr())
    stream.finish()
    stream.wait()
    assert torch.equal(grad, torch.full((4,), float(hvd.size())))
    stream.close()


def case_ctrl_c_interrupts_a_wait_for_tensors() -> None:
    if hvd.size() == 1:
        return
    grads = [torch.full((3,), float(hvd.rank())), torch.ones(5)]
    float32 = 8
    tensors = [(0, float32, 0, 0, list(grad.shape), None) for grad in grads]
    stream = _core.Stream("interrupted", ["a", "b"], tensors, None, (int(hvd.Sum), 1.0, 1.0, None, 0))
    hvd.barrier()
    for index, grad in enumerate(grads):
        stream.ready(index, grad.data_ptr())
    if hvd.rank() == 0:
        stream.finish()
        try:
            stream.wait_tensors([0], timeout_ms=20)
        except errors.DeadlineError:
            pass
        else:
            raise AssertionError("rank 1 has not finished")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        try:
            stream.wait_tensors([0, 1])
        except KeyboardInterrupt:
            assert time.monotonic() - begin < 1.0
        else:
            raise AssertionError("not interrupted")
        hvd.barrier()
    else:
        hvd.barrier()
        stream.finish()
    for index in (1, 0):
        stream.wait_tensors([index])
    assert torch.equal(grads[0], torch.full((3,), float(sum(range(hvd.size())))))
    assert torch.equal(grads[1], torch.full((5,), float(hvd.size())))
    stream.wait()
    stream.close()


def case_stats_options_and_members() -> None:
    assert [m["rank"] for m in sirtaki.members()] == list(range(hvd.size()))
    assert sirtaki.members()[hvd.rank()]["pid"] == os.getpid()
    assert isinstance(sirtaki.stats(), dict)
    assert any(row["name"] == "net.backend" for row in sirtaki.options())
