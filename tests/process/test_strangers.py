"""A running job whose ports receive foreign connections: the job continues, and a rank of another job is refused."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launch_support import PYTHON, first_line, listening_ports, pester, running, wait_until

pytest.importorskip("torch")
pytest.importorskip("sirtaki")

# Trains until the file of argv[1] exists; the ranks take the maximum of their answers, so all stop after the same step.
TRAINING = """
import os, sys
import torch, sirtaki.torch as hvd
hvd.init()
print("rendezvous", os.environ["SIRTAKI_JOB_RENDEZVOUS"], flush=True)
weight = torch.nn.Linear(64, 64)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weight.parameters(), lr=0.1), weight.named_parameters())
while True:
    optimizer.zero_grad()
    weight(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    if hvd.allreduce(torch.tensor(float(os.path.exists(sys.argv[1]))), name="stop", op=hvd.Max).item():
        break
print("trained", flush=True)
hvd.shutdown()
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "training.py"
    path.write_text(TRAINING)
    return str(path)


def test_junk_and_silence_on_every_port_do_not_disturb_a_job(program: str, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    noise = random.Random(seed)
    with running("-np", "2", PYTHON, program, str(stop)) as run:
        assert "rendezvous" in first_line(run)
        ports = listening_ports([run.process.pid, *run.marked()])
        assert len(ports) >= 3, f"launcher and two ranks listen on {ports}"
        silent = [link for port in ports for _ in range(3) for link in pester(port, noise)]
        assert silent
        stop.touch()
        done = run.finish(60)
        for link in silent:
            link.close()
    assert done.code == 0, done.err
    assert done.out.count("trained") == 2, done.out + done.err


@pytest.mark.usefixtures("warm_ranks")
def test_a_rank_with_another_secret_is_told_so_at_once(program: str, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    secret = tmp_path / "secret"
    secret.write_text("5a" * 32 + "\n")
    secret.chmod(0o600)
    with running("-np", "2", PYTHON, program, str(stop)) as run:
        address = re.search(r"rendezvous (\S+)", first_line(run))
        assert address is not None
        job = {"RANK": "1", "SIZE": "2", "RENDEZVOUS": address[1], "SECRET_FILE": str(secret)}
        stranger = subprocess.run(
            [PYTHON, "-c", "import sirtaki; sirtaki.init()"],
            env={**os.environ, **{f"SIRTAKI_JOB_{name}": value for name, value in job.items()}},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        stop.touch()
        done = run.finish(60)
    assert stranger.returncode == 1
    last = stranger.stderr.splitlines()[-1]
    assert "secret" in last, stranger.stderr
    assert "SIRTAKI_JOB_SECRET_FILE" in last, stranger.stderr
    assert done.code == 0, done.err
    assert done.out.count("trained") == 2, done.out + done.err


def test_ctrl_c_in_the_middle_of_training_is_one_line(program: str, tmp_path: Path) -> None:
    import signal

    with running("-np", "4", PYTHON, program, str(tmp_path / "never"), start_new_session=True) as run:
        assert "rendezvous" in first_line(run)
        # A terminal sends SIGINT to the whole foreground group.
        os.killpg(run.process.pid, signal.SIGINT)
        done = run.finish(30)
        wait_until(lambda: not run.marked(), 5, "all processes end")
    assert done.code == 128 + signal.SIGINT
    assert len(done.err.splitlines()) == 1, done.err
    assert "interrupted" in done.err
    assert done.seconds < 25
