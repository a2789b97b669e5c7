"""Ranks that another launcher started: torchrun, or a fake of Open MPI's mpirun. Real launchers: test_compat.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rank_support import clean_environment

pytest.importorskip("torch")

PROGRAM = """
import sys
import torch, sirtaki.torch as hvd
for _ in range(3):
    hvd.init()
    total = hvd.allreduce(torch.ones(1), op=hvd.Sum, name="total").item()
    where = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
    hvd.shutdown()
# In one write: the ranks share a pipe.
sys.stdout.write(" ".join(map(str, ["RESULT", *where, int(total)])) + "\\n")
sys.stdout.flush()
"""
LIMIT_SECONDS = 90


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def results(output: str) -> list[str]:
    return sorted(line[line.index("RESULT") :] for line in output.splitlines() if "RESULT" in line)


def as_open_mpi(rank: int, size: int, **more: str) -> dict[str, str]:
    facts = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size}
    return {**clean_environment(), **{f"OMPI_COMM_WORLD_{k}": str(v) for k, v in facts.items()}, **more}


def run_all(program: str, environments: list[dict[str, str]]) -> str:
    ranks = [
        subprocess.Popen(
            [sys.executable, program], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for env in environments
    ]
    try:
        return "".join(rank.communicate(timeout=LIMIT_SECONDS)[0] for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()


def test_ranks_of_one_host_meet_through_a_private_file(program: str) -> None:
    output = run_all(program, [as_open_mpi(rank, 2) for rank in range(2)])
    assert results(output) == ["RESULT 0 2 0 2 2", "RESULT 1 2 1 2 2"], output


def test_rank_zero_hosts_at_a_given_address(program: str, tmp_path: Path) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    secret = tmp_path / "secret"
    secret.write_text("5a" * 32 + "\n")
    secret.chmod(0o600)
    given = {"SIRTAKI_JOB_RENDEZVOUS": address, "SIRTAKI_JOB_SECRET_FILE": str(secret)}
    output = run_all(program, [as_open_mpi(rank, 2, **given) for rank in range(2)])
    assert results(output) == ["RESULT 0 2 0 2 2", "RESULT 1 2 1 2 2"], output


def test_several_hosts_without_a_secret_are_refused_with_the_fix(program: str) -> None:
    env = as_open_mpi(0, 4, OMPI_COMM_WORLD_LOCAL_SIZE="2")
    assert "SIRTAKI_JOB_RENDEZVOUS" in run_all(program, [env])
    env["SIRTAKI_JOB_RENDEZVOUS"] = "127.0.0.1:4000"
    assert "SIRTAKI_JOB_SECRET_FILE" in run_all(program, [env])


def test_torchrun_carries_the_secret_in_its_store(program: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert results(done.stdout) == ["RESULT 0 2 0 2 2", "RESULT 1 2 1 2 2"], done.stdout + done.stderr


@pytest.mark.usefixtures("warm_ranks")
def test_places_across_hosts_are_those_of_horovod(tmp_path: Path) -> None:
    script = tmp_path / "places.py"
    script.write_text(
        "import os\n"
        "os.environ['SIRTAKI_JOB_HOST_ID'] = 'ab'[int(os.environ['SIRTAKI_JOB_RANK']) // 2]\n"
        "import sirtaki.torch as hvd\n"
        "hvd.init()\n"
        "print('RESULT', hvd.rank(), hvd.local_rank(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous())\n"
    )
    command = [str(Path(sys.executable).with_name("sirtakirun")), "-np", "3", sys.executable, str(script)]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    # Rank 1 is the only rank with local rank 1, so cross_size is 1 there.
    assert results(done.stdout) == ["RESULT 0 0 0 2 False", "RESULT 1 1 0 1 False", "RESULT 2 0 1 2 False"], done
