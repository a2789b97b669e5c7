"""`make wheel-test`: installs the wheels of dist/ in clean Debian systems and trains there.

Each system is made by debootstrap and has its own Python, no compiler and no package of this project's build. There, in
a virtual environment: `pip install` of the wheel, `import sirtaki`, `sirtakirun --check`, and a training of two ranks.
torch comes from pip, or from Debian's package python3-torch, where pip would fetch a CUDA build of several GB. The
Python of Debian 11 is too old for the package, so there the wheel is unpacked, the library loaded and the launcher run.
Requires root (for chroot) and Debian's package debootstrap. Writes benchmarks/results/install.json.

usage: wheel_test.py [--systems NAME ...] [--folder FOLDER]
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
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
RESULT = ROOT / "benchmarks/results/install.json"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
# The script of debootstrap for every suite; an old debootstrap lacks the names of newer suites.
SCRIPT = "/usr/share/debootstrap/scripts/sid"
LIMIT_SECONDS = 900
MAX_IMPORT_SECONDS = 0.3
IMPORTS = 5

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
print("trained", hvd.rank())
"""
IMPORT = "import time; t = time.perf_counter(); import sirtaki; print(time.perf_counter() - t)"
LOAD = "import ctypes; ctypes.CDLL('{}/sirtaki/libsirtaki.so').sirtaki_version; print('loaded')"


@dataclass(frozen=True)
class System:
    """A release of Debian; `torch` is "pip", "debian" or empty, where the package cannot be installed."""

    suite: str
    python: str
    torch: str
    name: str


SYSTEMS = (
    System("bullseye", "3.9", "", "Debian 11"),
    System("bookworm", "3.11", "pip", "Debian 12"),
    System("trixie", "3.13", "debian", "Debian 13"),
    System("forky", "3.14", "debian", "Debian testing"),
)


@dataclass
class Row:
    """One row of the result."""

    system: str
    python: str
    wheel: str = ""
    wheel_bytes: int = 0
    install_seconds: float = 0.0
    import_seconds: float = 0.0
    check: str = "not run"
    training: str = "not run"
    torch: str = ""
    result: str = "failed"


class Chroot:
    """A clean system in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self, system: System) -> None:
        """Makes the system, if it is not there."""
        if (self.root / "made").exists():
            return
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        packages = "python3,python3-venv,ca-certificates" + (",python3-torch" if system.torch == "debian" else "")
        with (self.root.parent / f"{system.suite}.log").open("w") as log:
            subprocess.run(
                ["debootstrap", "--variant=minbase", f"--include={packages}",
                 system.suite, str(self.root), MIRROR, SCRIPT],
                check=True, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        (self.root / "made").touch()

    def run(self, command: str, env: dict[str, str] | None = None) -> str:
        """Runs a shell command inside, with /proc, /dev and /sys of its own mounts; returns its output."""
        root = shlex.quote(str(self.root))
        inner = f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && exec chroot {root} /bin/sh -ec "
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "sh", "-c", inner + shlex.quote(command)],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECONDS,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", **(env or {})},
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{command}: exit status {done.returncode}\n{done.stdout[-3000:]}")
        return done.stdout


def pip_environment(root: Path) -> dict[str, str]:
    """Copies the files that pip's settings of this machine name into the system; returns those settings."""
    settings = {name: text for name, text in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}
    for name in ("PIP_CERT", "PIP_FIND_LINKS"):
        path = Path(settings.get(name, "/nothing"))
        target = root / str(path).lstrip("/")
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        elif path.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return settings


def wheel_for(python: str) -> Path:
    """Returns the wheel of dist/ for a Python version."""
    tag = "cp" + python.replace(".", "")
    exact = sorted(DIST.glob(f"*-{tag}-{tag}-manylinux*.whl"))
    wheels = exact or sorted(DIST.glob("*-abi3-manylinux*.whl"))
    if not wheels:
        sys.exit(f"wheel-test: dist/ has no wheel for Python {python}: run make wheel")
    return wheels[-1]


def unpacked(chroot: Chroot, wheel: Path, row: Row) -> None:
    """Loads the library and runs the launcher of a wheel that the system's Python is too old for."""
    chroot.run(f"rm -rf /opt/sirtaki; python3 -m zipfile -e /root/{wheel.name} /opt/sirtaki")
    chroot.run(f"python3 -c {shlex.quote(LOAD.format('/opt/sirtaki'))}")
    program = next((chroot.root / "opt/sirtaki").glob("*.data/scripts/sirtakirun")).relative_to(chroot.root)
    chroot.run(f"chmod +x /{program} && /{program} --version && /{program} -np 2 /bin/true")
    row.check = "launches"
    row.result = "library and launcher"


def installed(chroot: Chroot, system: System, wheel: Path, row: Row) -> None:
    """Installs a wheel in a virtual environment, and trains."""
    env = pip_environment(chroot.root)
    site = "--system-site-packages" if system.torch == "debian" else ""
    chroot.run(f"rm -rf /opt/venv; python3 -m venv {site} /opt/venv")
    start = time.monotonic()
    chroot.run(f"/opt/venv/bin/pip install -q /root/{wheel.name}", env)
    row.install_seconds = round(time.monotonic() - start, 2)
    times = [float(chroot.run(f"/opt/venv/bin/python -c {shlex.quote(IMPORT)}")) for _ in range(IMPORTS)]
    row.import_seconds = round(min(times), 3)
    chroot.run("/opt/venv/bin/sirtakirun --check -np 2")
    row.check = "passed"
    if system.torch == "pip":
        chroot.run("/opt/venv/bin/pip install -q numpy torch==2.13.0", env)
    (chroot.root / "root/train.py").write_text(TRAINING)
    out = chroot.run("cd /root && /opt/venv/bin/sirtakirun -np 2 /opt/venv/bin/python train.py")
    assert out.count("trained") == 2, out
    row.training = "passed"
    row.torch = chroot.run("/opt/venv/bin/python -c 'import torch; print(torch.__version__)'").split()[-1]
    row.result = "passed" if row.import_seconds < MAX_IMPORT_SECONDS else "slow import"


def test(system: System, folder: Path) -> Row:
    """Tests one system."""
    wheel = wheel_for(system.python if system.torch else "3.11")
    row = Row(system.name, system.python, wheel.name, wheel.stat().st_size)
    chroot = Chroot(folder / system.suite)
    try:
        chroot.make(system)
        shutil.copy("/etc/resolv.conf", chroot.root / "etc/resolv.conf")
        shutil.copy(wheel, chroot.root / "root")
        if system.torch:
            installed(chroot, system, wheel, row)
        else:
            unpacked(chroot, wheel, row)
    except (RuntimeError, AssertionError, subprocess.SubprocessError) as error:
        row.result = f"failed: {str(error)[-600:]}"
    print(f"wheel-test: {row}", flush=True)
    return row


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="*", default=[system.suite for system in SYSTEMS])
    parser.add_argument("--folder", type=Path, default=ROOT / "build/wheel/systems", help="where the systems are made")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("wheel-test: needs root and Debian's package debootstrap")
    rows = [test(system, args.folder.resolve()) for system in SYSTEMS if system.suite in args.systems]
    result = {
        "name": "install",
        "command": "make wheel-test",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load_average_at_end": os.getloadavg()[0]},
        "rows": [asdict(row) for row in rows],
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row.result in ("passed", "library and launcher") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
