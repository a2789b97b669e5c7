"""Plan agreement over a tree of relays with two children each; five ranks make two levels below the hub."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launch_support import PYTHON, Run, first_line, listening_ports, pester, running

pytest.importorskip("torch")
pytest.importorskip("sirtaki")

RANKS = 5
#: Relays of the five ranks: ranks 0, 1, 2 and 4 have one each.
RELAYS = 4
#: A layer without a gradient on one rank, a name on which the ranks disagree, then steps until the file of argv[1]
#: exists.
TRAINING = """
import os, sys
import torch, sirtaki.torch as hvd
torch.set_num_threads(1)
hvd.init()
layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=0.1), layers.named_parameters())
hvd.broadcast_parameters(layers.state_dict(), root_rank=0)
odd = hvd.size() - 2
try:
    hvd.allreduce(torch.ones(4 if hvd.rank() == odd else 2), name="odd")
except hvd.HorovodInternalError as error:
    print("refused:", error, flush=True)
steps = 0
while True:
    steps += 1
    optimizer.zero_grad()
    out = layers[0](torch.ones(1, 8))
    (out if hvd.rank() == odd else layers[1](out)).sum().backward()
    optimizer.step()
    print("step", flush=True) if steps == 1 else None
    if hvd.allreduce(torch.tensor(float(os.path.exists(sys.argv[1]))), name="stop", op=hvd.Max).item():
        break
    hvd.allreduce(torch.ones(1 + steps % 2), name="changing")
print("trained", float(layers[0].weight.sum()), flush=True)
hvd.shutdown()
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "training.py"
    path.write_text(TRAINING)
    return str(path)


def environment() -> dict[str, str]:
    return {"SIRTAKI_CONTROL_FANOUT": "2"}


def until_a_step(run: Run) -> None:
    while True:
        line = first_line(run)
        assert line, "the job ended before its first step"
        if "step" in line:
            return


def pid_of(run: Run, rank: int) -> int:
    for pid in run.ranks():
        if f"SIRTAKI_JOB_RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    raise AssertionError(f"rank {rank} does not run")


def test_training_goes_on_whatever_strangers_say_to_the_relays(program: str, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    noise = random.Random(seed)
    with running("-np", str(RANKS), PYTHON, program, str(stop), env=environment()) as run:
        until_a_step(run)
        ports = listening_ports([run.process.pid, *run.marked()])
        assert len(ports) >= 1 + RANKS + RELAYS, f"launcher, ranks and relays listen on {ports}"
        silent = [link for port in ports for link in pester(port, noise)]
        stop.touch()
        done = run.finish(60)
        for link in silent:
            link.close()
    assert done.code == 0, done.err
    ends = {line.rpartition(" ")[2] for line in done.out.splitlines() if "trained" in line}
    assert done.out.count("trained") == RANKS, done.out + done.err
    assert len(ends) == 1, "all ranks have the same parameters"


@pytest.mark.usefixtures("warm_ranks")
def test_a_relay_that_is_killed_ends_the_job_naming_its_rank(program: str, tmp_path: Path) -> None:
    # Rank 0 has a relay for itself and rank 1, rank 2 one for itself.
    with running("-np", "3", PYTHON, program, str(tmp_path / "never"), env=environment()) as run:
        out = ""
        while out.count("refused:") < 3:
            line = first_line(run)
            assert line, "the job ended before all ranks were refused"
            out += line
        os.kill(pid_of(run, 0), signal.SIGKILL)
        done = run.finish(20)
    refusals = [line for line in out.splitlines() if "refused:" in line]
    assert all("odd" in line and "rank 1" in line for line in refusals), out
    assert done.code != 0
    assert "rank 0 on localhost: killed by signal 9 (Killed)" in done.err
