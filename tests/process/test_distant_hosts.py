"""Training between hosts with a long way between them: plans know the latency."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launch_support import PYTHON, launch
from ssh_hosts import Hosts, unavailable_reason

pytest.importorskip("torch")
pytest.importorskip("sirtaki")

REASON = unavailable_reason()
needs_hosts = pytest.mark.skipif(REASON is not None, reason=REASON or "")

# Rank 1 computes longer, so that it finds the data of rank 0 at its side.
TRAINING = """
import torch, sirtaki, sirtaki.torch as hvd
hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(384, 384) for _ in range(6)])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
batch = torch.randn(512 if hvd.rank() == 1 else 8, 384)
for step in range(40):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
stats = sirtaki.stats()
(stream,) = stats["tensors"]
print("latency", stats[f"streams.{stream}.link_latency_ns"]["value"], flush=True)
"""


# Short steps, which a merge outlasts.
LOCAL_TRAINING = """
import torch, sirtaki.torch as hvd
hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
updates = hvd.LocalUpdates("auto:warmup=0,gain=0")
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(), local_updates=updates
)
batch = torch.randn(64, 64)
for step in range(300):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
print("interval", optimizer.local_stats()["interval"], optimizer.local_stats()["delay"], flush=True)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts.of_a_test(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def train(hosts: Hosts, folder: Path, text: str, *options: str, delay_ms: int = 20) -> str:
    """Trains on two hosts with this delay in each direction; returns the output."""
    program = folder / "training.py"
    program.write_text(text)
    ranks = ("-H", f"{hosts.near_address}:1,{hosts.far_address}:1", *hosts.arguments())
    with hosts.shaped(100, 100), hosts.delayed(delay_ms):
        done = launch(*ranks, *options, PYTHON, str(program), prefix=hosts.inside(hosts.near), timeout=120)
    assert done.code == 0, done.out + done.err
    return done.out


@needs_hosts
def test_a_late_rank_does_not_make_the_link_look_near(hosts: Hosts, tmp_path: Path) -> None:
    output = train(hosts, tmp_path, TRAINING, "--compression", "auto")
    found = [int(line.split()[-1]) for line in output.splitlines() if "latency" in line]
    assert len(found) == 2, output
    assert min(found) >= 19e6, output


@needs_hosts
def test_intervals_of_local_updates_hide_the_latency(hosts: Hosts, tmp_path: Path) -> None:
    # So long that it is many steps on a machine with other work, too.
    output = train(hosts, tmp_path, LOCAL_TRAINING, delay_ms=60)
    found = {tuple(line.split()[-2:]) for line in output.splitlines() if "interval" in line}
    assert len(found) == 1, output
    interval, delay = (int(number) for number in found.pop())
    assert interval > 4, output
    assert interval > delay >= 3, output
