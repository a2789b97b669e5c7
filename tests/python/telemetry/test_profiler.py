"""Ranges of torch.profiler around the phases of a step."""

from __future__ import annotations

import pytest
from rank_support import launch

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile  # noqa: E402

from sirtaki.torch._profiling import profiled  # noqa: E402

TRAINED = """
import torch
from torch.profiler import ProfilerActivity, profile
import sirtaki.torch as hvd

hvd.init()
def train(**options):
    model = torch.nn.Linear(8, 4)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        optimizer.wait()
    optimizer.drain()
    return {event.key: event.count for event in found.key_averages() if event.key.startswith("sirtaki::")}

for name, options in {"backward": {}, "forward": {"sync": "forward"}, "local": {"local_updates": 2}}.items():
    found = train(**options)
    if hvd.rank() == 0:
        print("FOUND", name, *(f"{key[9:]}={found[key]}" for key in sorted(found)), flush=True)
"""


def found_in(output: str) -> dict[str, str]:
    lines = [line.partition("FOUND ")[2] for line in output.splitlines() if "FOUND " in line]
    return dict(line.partition(" ")[::2] for line in lines)


def test_each_phase_is_a_range() -> None:
    done = launch(2, "-c", TRAINED, warm=True)
    assert done.returncode == 0, done.stdout
    found = found_in(done.stdout)
    assert found["backward"] == "finish_backward=3 open_stream=1 wait_gradients=3"
    assert "finish_backward=3" in found["forward"]
    assert "wait_tensors=" in found["forward"]
    assert "wait_deferred=3" in found["forward"]
    assert "local_step=3" in found["local"]


WITH_DDP = """
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torch.nn.parallel import DistributedDataParallel
from sirtaki.torch.ddp import accelerate

dist.init_process_group("gloo")
def train(local):
    layers = [torch.nn.Linear(64, 64) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = accelerate(model, optimizer, compression="none", local_updates=None if local == "removed" else local)
    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
    step()  # DistributedDataParallel has its final buckets after the second forward pass
    if local == "removed":
        handle.remove()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(3):
            step()
    handle.drain()
    waited = [e for e in found.events() if e.name == "sirtaki::wait_gradients"]
    assert all(e.time_range.elapsed_us() > 0 for e in waited)
    return {event.key: event.count for event in found.key_averages() if event.key.startswith("sirtaki::")}

for name, local in {"ddp": None, "local": "fixed:steps=4,delay=1", "removed": "removed"}.items():
    found = train(local)
    if dist.get_rank() == 0:
        print("FOUND", name, *(f"{key[9:]}={found[key]}" for key in sorted(found)), flush=True)
"""


def test_each_phase_is_a_range_with_distributed_data_parallel() -> None:
    done = launch(2, "-c", WITH_DDP, warm=True)
    assert done.returncode == 0, done.stdout
    found = found_in(done.stdout)
    assert found["ddp"] == "submit_bucket=6 wait_gradients=3"
    assert "local_step=3" in found["local"]
    assert found["removed"] == "", "the process group works"


def test_a_range_keeps_results_errors_and_the_name_of_its_function() -> None:
    @profiled("test")
    def divide(a: int, b: int = 1) -> int:
        return a // b

    assert divide.__name__ == "divide"
    assert divide(6, b=2) == 3
    with profile(activities=[ProfilerActivity.CPU]) as found:
        assert divide(6, b=3) == 2
        with pytest.raises(ZeroDivisionError):
            divide(6, b=0)
    assert [event.count for event in found.key_averages() if event.key == "sirtaki::test"] == [2]
