"""The same programs under every launcher that Sirtaki supports, through every door; `make compat` keeps the results."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rank_support import clean_environment
from slurm_cluster import slurm_cluster

pytest.importorskip("torch")
pytestmark = pytest.mark.compat

ROOT = Path(__file__).resolve().parents[2]
RANKS = 2
LIMIT_SECONDS = 150
SMALL = ("--steps", "20")
COMPRESSED = (*SMALL, "--compression", "int8", "--local-updates", "4")
#: Ranks, example and its arguments, by the door through which the program uses Sirtaki.
DOORS: dict[str, tuple[int, tuple[str, ...]]] = {
    "DistributedOptimizer": (RANKS, ("pytorch_mnist.py", *SMALL)),
    "backend sirtaki": (RANKS, ("ddp_fashion_mnist.py", "--backend", "sirtaki", "--unchanged", *SMALL)),
    "accelerate() for DDP": (RANKS, ("ddp_fashion_mnist.py", "--backend", "sirtaki", *COMPRESSED)),
    "accelerate() for FSDP": (4, ("fsdp_fashion_mnist.py", "--backend", "sirtaki", "--shards", "2", *COMPRESSED)),
    "accelerate() in a loop": (RANKS, ("loop_fashion_mnist.py", *COMPRESSED)),
    "Keras": (RANKS, ("keras_fashion_mnist.py", *COMPRESSED)),
}

# Initializes three times, so that a second epoch under the same launcher works too. Results go to files, because
# launchers mix lines of output.
MEETING = """
import sys, torch, sirtaki.torch as hvd
for _ in range(3):
    hvd.init()
    total = hvd.allreduce(torch.ones(1), op=hvd.Sum, name="total").item()
    where = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
    hvd.shutdown()
with open(f"{sys.argv[1]}/{where[0]}.result", "w") as file:
    print(*where, int(total), file=file)
"""


def found(program: str) -> str:
    path = shutil.which(program)
    assert path is not None, f"{program} is missing; scripts/setup.sh compat installs it"
    return path


def with_sirtakirun(ranks: int) -> list[str]:
    from sirtaki.launch import launcher_path

    return [launcher_path(), "-np", str(ranks), sys.executable]


def with_torchrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def with_mpirun(ranks: int) -> list[str]:
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [found("mpirun"), *as_root, "--oversubscribe", "-np", str(ranks), sys.executable]


def with_srun(ranks: int) -> list[str]:
    return [found("srun"), "--overcommit", "-n", str(ranks), sys.executable]


def version_of(env: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    number = re.search(r"\d+\.\d+[\w.+-]*", done.stdout + done.stderr)
    return number[0] if number else "unknown"


TORCH_VERSION = [sys.executable, "-c", "import torch; print(torch.__version__)"]
#: Command before the program for a number of ranks, and command that prints the version, by launcher.
LAUNCHERS: dict[str, tuple[Callable[[int], list[str]], Callable[[], list[str]]]] = {
    "sirtakirun": (with_sirtakirun, lambda: [with_sirtakirun(1)[0], "--version"]),
    "torchrun": (with_torchrun, lambda: TORCH_VERSION),
    "mpirun (Open MPI)": (with_mpirun, lambda: ["mpirun", "--version"]),
    "srun (Slurm)": (with_srun, lambda: ["srun", "--version"]),
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


@pytest.fixture
def door(request: pytest.FixtureRequest) -> str:
    """Returns the door of a test with a parameter of this name, or that of programs without a training."""
    return getattr(request, "param", "collectives")


@pytest.fixture(params=LAUNCHERS)
def start(
    request: pytest.FixtureRequest, door: str, record_property: Callable[[str, object], None]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Returns a function that runs a Python program under one launcher, on as many ranks as the door needs."""
    command, version = LAUNCHERS[request.param]
    ranks, _ = DOORS.get(door, (RANKS, ()))
    # The properties come first, so that a launcher whose setup fails has a row among the results.
    record_property("launcher", request.param)
    record_property("door", door)
    record_property("ranks", ranks)
    more = request.getfixturevalue("slurm") if "srun" in request.param else {}
    env = {**clean_environment(), **more}
    record_property("version", version_of(env, *version()))

    def run(*program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command(ranks), *program],
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    return run


def test_ranks_meet_again_and_again(start: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    program = tmp_path / "meeting.py"
    program.write_text(MEETING)
    done = start(str(program), str(tmp_path))
    results = sorted(path.read_text() for path in tmp_path.glob("*.result"))
    expected = [f"{rank} {RANKS} {rank} {RANKS} {RANKS}\n" for rank in range(RANKS)]
    assert results == expected, done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("door", DOORS, indirect=True)
def test_the_example_of_a_door_trains(door: str, start: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    _, (example, *arguments) = DOORS[door]
    done = start(str(ROOT / "examples" / example), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"test accuracy [\d.]+%", done.stdout)) == 1, done.stdout + done.stderr
    if "--local-updates" in arguments:
        # The report of Keras has no row of merges.
        sign = "int8" if door == "Keras" else r"merges +\d+ in \d+ rounds"
        assert re.search(f"  {sign}", done.stderr), done.stderr


def test_the_failure_of_a_rank_ends_the_job(
    start: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    program = tmp_path / "failing.py"
    program.write_text(
        "import os, torch, sirtaki.torch as hvd\n"
        "hvd.init()\n"
        "if hvd.rank() == 1: os._exit(7)\n"
        "hvd.allreduce(torch.ones(1), name='never')\n"
    )
    done = start(str(program))
    assert done.returncode != 0
    assert "rank 1" in done.stdout + done.stderr, done.stdout + done.stderr
