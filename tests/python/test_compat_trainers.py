"""Trainers of other libraries over backend `sirtaki` of torch.distributed, as installed by `make compat`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from rank_support import clean_environment

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


@pytest.mark.parametrize("library", LIBRARIES)
def test_training_goes_over_the_backend(
    library: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    package, launcher, arguments = LIBRARIES[library]
    record_property("launcher", f"{launcher}, {library}")
    record_property("ranks", 2)
    python = VENVS / package / "bin/python"
    assert python.exists(), f"{library} is missing; scripts/setup.sh compat installs it"
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    record_property("version", version)
    env = {**clean_environment(), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    env["PYTHONPATH"] = os.pathsep.join([str(PROGRAMS), env.get("PYTHONPATH", "")])
    program = [python, *arguments, str(PROGRAMS / f"{package}_program.py"), str(tmp_path)]
    log = tmp_path / "output"
    # Output goes to a file and the program gets its own session: some libraries leave processes that would keep a pipe
    # open.
    with log.open("w") as output:
        started = subprocess.Popen(
            program, env=env, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
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
    assert "TRAINED" in said, said[-6000:]
