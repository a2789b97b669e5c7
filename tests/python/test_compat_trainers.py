"""Trainers of other libraries, as installed by `make compat`.

They run over backend `sirtaki` of torch.distributed, and with all of Sirtaki through sirtaki.lightning,
sirtaki.huggingface and accelerate().
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from rank_support import clean_environment

from sirtaki.launch import launcher_path

pytest.importorskip("torch")
pytestmark = pytest.mark.compat

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests/python/trainers"
VENVS = ROOT / ".cache/compat"
LIMIT_SECONDS = 240
#: Package, and launcher of its programs, by library.
LIBRARIES: dict[str, tuple[str, str]] = {
    "Lightning": ("lightning", "torchrun"),
    "Accelerate": ("accelerate", "torchrun"),
    "Transformers": ("transformers", "torchrun"),
    "Ray Train": ("ray", "Ray"),
}
#: Library, launcher, program and its arguments by door: class or call of Sirtaki for the library.
DOORS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "sirtaki.lightning": ("Lightning", "torchrun", ("lightning_door.py", "lightning")),
    "sirtaki.pytorch_lightning": ("Lightning", "torchrun", ("lightning_door.py", "pytorch_lightning")),
    "SirtakiCallback": ("Transformers", "torchrun", ("transformers_door.py",)),
    "accelerate_prepared()": ("Accelerate", "accelerate launch", ("accelerate_door.py",)),
    "accelerate() in Ray Train": ("Ray Train", "Ray", ("ray_door.py",)),
}
LOCAL = ("--steps", "20", "--local-updates", "4")
#: Example, library, launcher and arguments. "FOLDER" stands for a folder of the test.
EXAMPLES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("lightning_fashion_mnist.py", "Lightning", "torchrun", ("--devices", "2", *LOCAL)),
    ("huggingface_fashion_mnist.py", "Transformers", "torchrun", ("--output", "FOLDER", *LOCAL)),
    ("huggingface_fashion_mnist.py", "Transformers", "accelerate launch", ("--output", "FOLDER", *LOCAL)),
    ("accelerate_fashion_mnist.py", "Accelerate", "accelerate launch", LOCAL),
    ("accelerate_fashion_mnist.py", "Accelerate", "sirtakirun", LOCAL),
    ("ray_fashion_mnist.py", "Ray Train", "Ray", ("--workers", "2", *LOCAL)),
)

Record = Callable[[str, object], None]


@pytest.mark.parametrize("library", LIBRARIES)
def test_training_goes_over_the_backend(library: str, tmp_path: Path, record_property: Record) -> None:
    package, launcher = LIBRARIES[library]
    program = (str(PROGRAMS / f"{package}_program.py"), str(tmp_path))
    record_property("door", "backend sirtaki")
    assert "TRAINED" in run(library, launcher, program, tmp_path, record_property)


@pytest.mark.parametrize("library", [name for name, row in LIBRARIES.items() if row[1] == "torchrun"])
def test_a_program_for_torchrun_trains_under_sirtakirun(library: str, tmp_path: Path, record_property: Record) -> None:
    program = (str(PROGRAMS / f"{LIBRARIES[library][0]}_program.py"), str(tmp_path))
    record_property("door", "backend sirtaki")
    said = run(library, "sirtakirun", program, tmp_path, record_property)
    assert "TRAINED" in said, said[-6000:]


@pytest.mark.parametrize("door", DOORS)
def test_one_class_brings_compression_and_local_updates(door: str, tmp_path: Path, record_property: Record) -> None:
    library, launcher, (program, *arguments) = DOORS[door]
    record_property("door", door)
    said = run(library, launcher, (str(PROGRAMS / program), str(tmp_path), *arguments), tmp_path, record_property)
    assert "TRAINED" in said, said[-6000:]


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: f"{row[0]} {row[2]}")
def test_example_of_a_trainer(
    row: tuple[str, str, str, tuple[str, ...]], tmp_path: Path, record_property: Record
) -> None:
    example, library, launcher, arguments = row
    program = (str(ROOT / "examples" / example), *(str(tmp_path) if a == "FOLDER" else a for a in arguments))
    record_property("door", example)
    said = run(library, launcher, program, tmp_path, record_property)
    assert re.search(r"test accuracy [\d.]+%, steps of [\d.]+ s", said), said[-6000:]


def command_before(launcher: str, python: str) -> list[str]:
    """Returns the command before a program for two ranks."""
    if launcher == "sirtakirun":
        return [launcher_path(), "-np", "2", python]
    if launcher == "torchrun":
        return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    if launcher == "accelerate launch":
        # accelerate launch needs --multi_gpu for several processes, even on CPUs.
        ranks = ("--multi_gpu", "--num_machines", "1", "--num_processes", "2", "--main_process_port", "0")
        return [python, "-m", "accelerate.commands.launch", *ranks, "--mixed_precision", "no", "--dynamo_backend", "no"]
    return [python]


def run(library: str, launcher: str, program: tuple[str, ...], tmp_path: Path, record_property: Record) -> str:
    """Runs a program in the environment of a library under a launcher; returns its output.

    Fails unless the program exits with 0.
    """
    package, _ = LIBRARIES[library]
    record_property("launcher", f"{launcher}, {library}")
    record_property("ranks", 2)
    python = VENVS / package / "bin/python"
    assert python.exists(), f"{library} is missing; scripts/setup.sh compat installs it"
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    record_property("version", version)
    env = {**clean_environment(), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    env["PYTHONPATH"] = os.pathsep.join([str(PROGRAMS), env.get("PYTHONPATH", "")])
    command = [*command_before(launcher, str(python)), *program]
    log = tmp_path / "output"
    # Output goes to a file and the program gets its own session: some libraries leave processes that would keep a pipe
    # open.
    with log.open("w") as output:
        started = subprocess.Popen(
            command, env=env, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | str = started.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            code = f"not over after {LIMIT_SECONDS} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
    said = log.read_text(errors="replace")
    assert code == 0, f"{code}: {said[-9000:]}"
    return said
