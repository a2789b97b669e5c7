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
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
#: Package, launcher and Python arguments before the program, by library.
LIBRARIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "Lightning": ("lightning", "torchrun", TORCHRUN),
    "Accelerate": ("accelerate", "torchrun", TORCHRUN),
    "Transformers": ("transformers", "torchrun", TORCHRUN),
    "Ray Train": ("ray", "Ray", ()),
}


#: Library and arguments of the programs that use a class of Sirtaki for the library.
DOORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lightning_door.py": ("Lightning", ("lightning",)),
    "lightning_door.py as pytorch_lightning": ("Lightning", ("pytorch_lightning",)),
    "transformers_door.py": ("Transformers", ()),
    "accelerate_door.py": ("Accelerate", ()),
}
#: Library and arguments of examples. "FOLDER" stands for a folder of the test.
EXAMPLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "lightning_fashion_mnist.py": ("Lightning", ("--devices", "2", "--steps", "20", "--local-updates", "4")),
    "huggingface_fashion_mnist.py": ("Transformers", ("--steps", "20", "--output", "FOLDER", "--local-updates", "4")),
    "ray_fashion_mnist.py": ("Ray Train", ("--workers", "2", "--steps", "20", "--local-updates", "4")),
}

Record = Callable[[str, object], None]


@pytest.mark.parametrize("library", LIBRARIES)
def test_training_goes_over_the_backend(library: str, tmp_path: Path, record_property: Record) -> None:
    program = (str(PROGRAMS / f"{LIBRARIES[library][0]}_program.py"), str(tmp_path))
    assert "TRAINED" in run(library, program, tmp_path, record_property)


@pytest.mark.parametrize("library", [name for name, row in LIBRARIES.items() if row[1] == "torchrun"])
def test_a_program_for_torchrun_trains_under_sirtakirun(library: str, tmp_path: Path, record_property: Record) -> None:
    package = LIBRARIES[library][0]
    program = (str(PROGRAMS / f"{package}_program.py"), str(tmp_path))
    said = run(library, program, tmp_path, record_property, start=("sirtakirun", (launcher_path(), "-np", "2")))
    assert "TRAINED" in said, said[-6000:]


@pytest.mark.parametrize("door", DOORS)
def test_one_class_brings_compression_and_local_updates(door: str, tmp_path: Path, record_property: Record) -> None:
    library, arguments = DOORS[door]
    program = (str(PROGRAMS / door.partition(" ")[0]), str(tmp_path), *arguments)
    said = run(library, program, tmp_path, record_property)
    assert "TRAINED" in said, said[-6000:]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_of_a_trainer(example: str, tmp_path: Path, record_property: Record) -> None:
    library, arguments = EXAMPLES[example]
    program = (str(ROOT / "examples" / example), *(str(tmp_path) if a == "FOLDER" else a for a in arguments))
    said = run(library, program, tmp_path, record_property)
    assert re.search(r"test accuracy [\d.]+%, steps of [\d.]+ s", said), said[-6000:]


def run(
    library: str,
    program: tuple[str, ...],
    tmp_path: Path,
    record_property: Record,
    start: tuple[str, tuple[str, ...]] | None = None,
) -> str:
    """Runs a program in the environment of a library, under its launcher or under `start`; returns its output.

    Fails unless the program exits with 0.
    """
    package, launcher, arguments = LIBRARIES[library]
    launcher, before = start or (launcher, ())
    record_property("launcher", f"{launcher}, {library}")
    record_property("ranks", 2)
    python = VENVS / package / "bin/python"
    assert python.exists(), f"{library} is missing; scripts/setup.sh compat installs it"
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    record_property("version", version)
    env = {**clean_environment(), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    env["PYTHONPATH"] = os.pathsep.join([str(PROGRAMS), env.get("PYTHONPATH", "")])
    command = [*before, python, *(() if before else arguments), *program]
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
