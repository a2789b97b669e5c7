"""`make wheel-test`: installs the wheels of dist/ in clean Debian systems, reduces, launches and trains there.

Each system is made by debootstrap and has no compiler and no package of this project's build. In a virtual environment
of the system's own Python: `pip install` of the wheel, `import sirtaki`, an allreduce of numpy arrays by two ranks,
digests of the sums by each codec (codec_digests.py), `sirtakirun --check`, a rank started by an agent behind an ssh
command, a training by torch and one by TensorFlow.
torch comes from pip, or from Debian's package python3-torch, where pip would fetch a CUDA build of several GB. The
Python of Debian 11 is too old, so there the wheel is unpacked, the library loaded and the launcher run. Pythons that no
release of Debian has are copied from ~/.pyenv and run the same steps without frameworks.
A system of another architecture runs by QEMU, which takes minutes to make it: bookworm-aarch64 needs Linux 6.7 and
Debian's package qemu-user-static. On two hosts, a program for torchrun trains as README.md says (wheel_hosts.py).
Requires root (for chroot), and Debian's packages debootstrap and iproute2. Writes benchmarks/results/install.json.

usage: wheel_test.py [--systems NAME ...] [--wheel FILE] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import wheel_hosts
from clean_system import NATIVE, Chroot, pip_environment

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
RESULT = ROOT / "benchmarks/results/install.json"
MAX_IMPORT_SECONDS = 0.3
IMPORTS = 10
PIP_TORCH = ("numpy", "torch==2.13.0")
PIP_TENSORFLOW = ("tensorflow-cpu==2.21.0",)

ALLREDUCE = """
import sys
import numpy as np
import sirtaki
from sirtaki._numpy import numpy_ops
from sirtaki.ops import ReduceOp

sirtaki.init()
assert sirtaki.size() == 2
ranks = np.full(100_000, sirtaki.rank() + 1, np.float32)
work = numpy_ops.allreduce(ranks, "ranks", ReduceOp.SUM, (1.0, 1.0), in_place=False)
assert (numpy_ops.start_one(work).wait() == 3).all()
assert "torch" not in sys.modules
sirtaki.shutdown()
print("reduced")
"""
# Takes the place of ssh: runs the command that ssh would run on the other host.
SSH = """#!/bin/sh
for command; do :; done
exec /bin/sh -c "$command"
"""
TRAINING = """
import torch
import sirtaki.torch as hvd

hvd.init()
assert hvd.size() == 2
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
inputs = torch.randn(256, 8)
losses = []
for _ in range(50):
    optimizer.zero_grad()
    loss = (model(inputs) - inputs[:, :1]).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
both = hvd.allgather(flat[None], name="parameters")
assert torch.equal(both[0], both[1]), "the ranks differ"
assert losses[-1] < losses[0] / 2, losses
hvd.shutdown()
print("trained")
"""
PASSED = ("passed", "library and launcher")
HOSTS = "hosts"
# CPU time, which other processes of the machine hardly change.
IMPORT = "import time; t = time.process_time(); import sirtaki; print(time.process_time() - t)"
LOAD = "import ctypes; ctypes.CDLL('{}/sirtaki/libsirtaki.so').sirtaki_version; print('loaded')"


@dataclass(frozen=True)
class System:
    """A release of Debian with a Python.

    `source` names who made the Python: "Debian", "pyenv", or "too old", where the package cannot be installed. `torch`
    is "pip", "Debian" or empty.
    """

    name: str
    suite: str
    python: str
    source: str = "Debian"
    torch: str = ""
    tensorflow: bool = False
    arch: str = NATIVE

    @property
    def place(self) -> str:
        """Name of the folder of the system, which the systems of a suite share."""
        return self.suite if self.arch == NATIVE else f"{self.suite}-{self.arch}"


SYSTEMS = (
    System("Debian 11", "bullseye", "3.9", source="too old"),
    System("Debian 12", "bookworm", "3.10", source="pyenv"),
    System("Debian 12", "bookworm", "3.11", torch="pip", tensorflow=True),
    System("Debian 12", "bookworm", "3.12", source="pyenv"),
    System("Debian 13", "trixie", "3.13", torch="Debian"),
    System("Debian testing", "forky", "3.14", torch="Debian"),
    System("Debian 12 arm64", "bookworm", "3.11", arch="aarch64"),
)


@dataclass
class Row:
    """One row of the result. A step has its seconds if it passed; the first that fails ends the row."""

    system: str
    python: str
    python_source: str
    glibc: str = ""
    wheel: str = ""
    wheel_bytes: int = 0
    date: str = ""
    import_seconds: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    note: str = ""
    result: str = "failed"


def wheel_for(python: str, arch: str = NATIVE) -> Path:
    """Returns the wheel of dist/ for a Python version."""
    tag = "cp" + python.replace(".", "")
    exact = sorted(DIST.glob(f"*-{tag}-{tag}-manylinux*_{arch}.whl"))
    wheels = exact or sorted(DIST.glob(f"*-abi3-manylinux*_{arch}.whl"))
    if not wheels:
        sys.exit(f"wheel-test: dist/ has no wheel for Python {python}: run make wheel ARCH={arch}")
    return wheels[-1]


def interpreter(chroot: Chroot, system: System) -> str:
    """Returns the Python of a system; copies it into the system first, if it is one of pyenv."""
    if system.source != "pyenv":
        return "/usr/bin/python3"
    homes = sorted(Path.home().glob(f".pyenv/versions/{system.python}.*"))
    if not homes:
        raise RuntimeError(f"there is no Python {system.python} in ~/.pyenv")
    target = chroot.root / str(homes[-1]).lstrip("/")
    if not target.exists():
        shutil.copytree(homes[-1], target, symlinks=True, ignore=shutil.ignore_patterns("test", "site-packages", "*.a"))
    return f"{homes[-1]}/bin/python{system.python}"


class Steps:
    """The steps of one row."""

    def __init__(self, chroot: Chroot, row: Row, programs: str) -> None:
        self.chroot = chroot
        self.row = row
        self.programs = programs  # the folder of python, pip and sirtakirun

    def step(self, name: str, command: str, ranks: int = 0, word: str = "") -> None:
        """Runs a command, takes its time and demands that each of `ranks` prints a word."""
        start = time.monotonic()
        out = self.chroot.run(f"PATH={self.programs}:$PATH; cd /root; {command}", pip_environment(self.chroot.root))
        if out.count(word) < ranks:
            raise RuntimeError(f"{command}: {out[-1000:]}")
        self.row.seconds[name] = round(time.monotonic() - start, 2)

    def version(self, package: str) -> None:
        """Notes the version of a package."""
        code = f"import {package}; print({package}.__version__)"
        self.row.versions[package] = self.chroot.run(f"{self.programs}/python -c {shlex.quote(code)}").split()[-1]


def unpacked(steps: Steps, wheel: Path) -> None:
    """Loads the library and runs the launcher of a wheel that the system's Python is too old for."""
    steps.step("unpack", f"rm -rf /opt/sirtaki; python3 -m zipfile -e /root/{wheel.name} /opt/sirtaki")
    steps.step("load", f"python3 -c {shlex.quote(LOAD.format('/opt/sirtaki'))}")
    program = next((steps.chroot.root / "opt/sirtaki").glob("*.data/scripts/sirtakirun")).relative_to(steps.chroot.root)
    steps.step("launch", f"chmod +x /{program} && /{program} -np 2 /bin/echo launched", ranks=2, word="launched")
    steps.row.result = "library and launcher"


def measure_import(steps: Steps, home: str) -> None:
    """Takes the time of `import sirtaki`, and demands that it is short."""
    times = [float(steps.chroot.run(f"{home}/bin/python -c {shlex.quote(IMPORT)}")) for _ in range(IMPORTS)]
    steps.row.import_seconds = round(min(times), 3)
    if steps.row.import_seconds >= MAX_IMPORT_SECONDS:
        raise RuntimeError(f"import sirtaki takes {steps.row.import_seconds} s of CPU time")


def installed(steps: Steps, system: System, wheel: Path, python: str) -> None:
    """Installs a wheel in a virtual environment and uses it."""
    site = "--system-site-packages" if system.torch == "Debian" else ""
    home = steps.programs.removesuffix("/bin")
    steps.chroot.run(f"rm -rf {home}; {python} -m venv {site} {home}")
    steps.step("install", f"pip install -q {wheel.name}")
    if system.arch == NATIVE:  # QEMU says nothing about time
        measure_import(steps, home)
    steps.step("numpy", "pip install -q numpy")
    steps.step("allreduce", "sirtakirun -np 2 python allreduce.py", ranks=2, word="reduced")
    steps.step("digests", "sirtakirun -np 2 python codec_digests.py", ranks=2, word="equal digests")
    steps.step("check", "sirtakirun --check -np 2")
    far = "PATH=/opt/ssh:$PATH sirtakirun -np 2 -H localhost:1,far:1 --rendezvous-address 127.0.0.1"
    steps.step("remote agent", f"{far} python allreduce.py", ranks=2, word="reduced")
    if system.torch == "pip":
        steps.step("torch", f"pip install -q {' '.join(PIP_TORCH)}")
    if system.torch:
        steps.step("training", "sirtakirun -np 2 python train.py", ranks=2, word="trained")
        steps.version("torch")
    if system.tensorflow:
        steps.step("tensorflow", f"pip install -q {' '.join(PIP_TENSORFLOW)}")
        steps.step("training in tensorflow", "sirtakirun -np 2 python tensorflow_loop.py", ranks=1, word="step 300")
        steps.version("tensorflow")
    steps.row.result = "passed"


def test(system: System, folder: Path) -> Row:
    """Tests one system."""
    wheel = wheel_for("3.11" if system.source == "too old" else system.python, system.arch)
    row = Row(system.name, system.python, system.source, "", wheel.name, wheel.stat().st_size)
    chroot = Chroot(folder / system.place, arch=system.arch)
    if system.arch != NATIVE:
        row.note = "run by QEMU on x86-64: its seconds say nothing"
    try:
        chroot.make(system.suite)
        row.glibc = chroot.run("ldd --version").split("\n")[0].split()[-1]
        if system.torch == "Debian":
            chroot.install("python3-torch")
        shutil.copy(wheel, chroot.root / "root")
        shutil.copy(ROOT / "examples/tensorflow_loop.py", chroot.root / "root")
        shutil.copy(ROOT / "scripts/codec_digests.py", chroot.root / "root")
        chroot.write("/root/allreduce.py", ALLREDUCE)
        chroot.write("/root/train.py", TRAINING)
        chroot.write("/opt/ssh/ssh", SSH, 0o755)
        if system.source == "too old":
            unpacked(Steps(chroot, row, "/usr/bin"), wheel)
        else:
            python = interpreter(chroot, system)
            row.versions["python"] = chroot.run(f"{python} --version").split()[-1]
            installed(Steps(chroot, row, f"/opt/python{system.python}/bin"), system, wheel, python)
    except (RuntimeError, OSError, StopIteration, subprocess.SubprocessError) as error:
        row.result = f"failed: {str(error)[-600:]}"
    row.date = datetime.now(UTC).isoformat(timespec="seconds")
    print(f"wheel-test: {row}", flush=True)
    return row


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*sorted({system.place for system in SYSTEMS}), HOSTS]
    parser.add_argument("--systems", nargs="+", choices=names, default=names, help="suites, whose rows are replaced")
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {HOSTS} (default: that of dist/)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/wheel/systems", help="where the systems are made")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("wheel-test: needs root and Debian's package debootstrap")
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    rows = {(row["system"], row["python"]): row for row in kept.get("rows", [])}
    hosts = kept.get(HOSTS, {})
    for system in SYSTEMS:
        if system.place in args.systems:
            rows[system.name, system.python] = asdict(test(system, args.folder.resolve()))
    if HOSTS in args.systems:
        hosts = wheel_hosts.test(args.wheel or wheel_for("3.11"), args.folder.resolve(), PIP_TORCH)
        print(f"wheel-test: {hosts}", flush=True)
    result = {
        "name": "install",
        "command": "make wheel-test",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load_average_at_end": os.getloadavg()[0]},
        "rows": [rows[system.name, system.python] for system in SYSTEMS if (system.name, system.python) in rows],
        HOSTS: hosts,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["result"] in PASSED for row in [*rows.values(), hosts] if row) else 1


if __name__ == "__main__":
    sys.exit(main())
