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


def test_each_phase_is_a_range() -> None:
    done = launch(2, "-c", TRAINED, warm=True)
    assert done.returncode == 0, done.stdout
    found = dict(line.partition("FOUND ")[2].split(" ", 1) for line in done.stdout.splitlines() if "FOUND " in line)
    assert found["backward"] == "finish_backward=3 open_stream=1 wait_gradients=3"
    assert "finish_backward=3" in found["forward"]
    assert "wait_tensors=" in found["forward"]
    assert "wait_deferred=3" in found["forward"]
    assert "local_step=3" in found["local"]


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
