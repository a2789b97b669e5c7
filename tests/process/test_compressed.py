"""Compressed training in real processes: equal replicas, and a rank that is killed in the middle of a step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launch_support import PYTHON, launch, warm

pytest.importorskip("torch")
pytest.importorskip("sirtaki")

# Rank 1 is killed while step `fatal` computes its gradients and some of them are in flight.
TRAINING = """
import hashlib, os, signal, sys
import torch, sirtaki.torch as hvd
hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
fatal = int(sys.argv[1])
step = -1

def die(gradient):
    if step == fatal and hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)

model[1].weight.register_hook(die)
torch.manual_seed(1 + hvd.rank())
try:
    for step in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 256)).square().mean().backward()
        optimizer.step()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print("digest", digest, flush=True)
except hvd.HorovodInternalError as error:
    print("told:", error, flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "training.py"
    path.write_text(TRAINING)
    return str(path)


CODECS = ["twobit:min=0,wire=scatter", "group_topk:min=0,wire=gather"]


@pytest.mark.parametrize("codec", CODECS)
def test_replicas_stay_equal(codec: str, program: str) -> None:
    done = launch("-np", "3", "--compression", codec, *warm(program, "-1"), timeout=60)
    digests = {line.split()[-1] for line in done.out.splitlines() if "digest" in line}
    assert done.code == 0, done.out + done.err
    assert done.out.count("digest") == 3
    assert len(digests) == 1, done.out


def test_sums_have_the_bits_of_other_machines() -> None:
    program = str(Path(__file__).parents[2] / "scripts/codec_digests.py")
    done = launch("-np", "2", PYTHON, program, timeout=60)
    assert done.code == 0, done.out + done.err
    assert done.out.count("equal digests") == 2


@pytest.mark.parametrize("codec", CODECS)
def test_a_rank_killed_in_a_compressed_step_is_named(codec: str, program: str) -> None:
    done = launch("-np", "3", "--compression", codec, *warm(program, "3"), timeout=60)
    told = [line for line in done.out.splitlines() if "told:" in line]
    assert len(told) == 2, done.out + done.err
    assert all("rank 1" in line for line in told), told
