"""join() when a rank dies while the others wait in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launch_support import launch, warm

pytest.importorskip("torch")
pytest.importorskip("sirtaki")

# Rank 1 has more batches than the others, and dies after some of the extra ones.
TRAINING = """
import os, time
import torch, sirtaki.torch as hvd
hvd.init()
model = torch.nn.Linear(64, 64)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for _ in range(5 if hvd.rank() == 1 else 2):
    optimizer.zero_grad()
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
if hvd.rank() == 1:
    os._exit(7)
begin = time.monotonic()
try:
    hvd.join()
except hvd.HorovodInternalError as error:
    print(f"told after {time.monotonic() - begin:.1f} s:", error, flush=True)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_death_ends_the_wait_of_those_that_have_joined(ranks: int, tmp_path: Path) -> None:
    program = tmp_path / "training.py"
    program.write_text(TRAINING)
    done = launch("-np", str(ranks), *warm(str(program)), timeout=60)
    told = [line for line in done.out.splitlines() if "told after" in line]
    assert len(told) == ranks - 1, done.out + done.err
    assert all("rank 1" in line for line in told), told
    assert done.code == 7
