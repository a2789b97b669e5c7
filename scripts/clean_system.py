"""Clean Debian systems in folders, for tests of installations."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
# The script of debootstrap for every suite; an old debootstrap lacks the names of newer suites.
SCRIPT = "/usr/share/debootstrap/scripts/sid"
LIMIT_SECONDS = 1800
NATIVE = "x86_64"
#: Debian's names of other architectures, whose programs QEMU runs.
FOREIGN = {"aarch64": "arm64"}
QEMU_CHROOT = Path(__file__).resolve().parent / "qemu_chroot.sh"


class Chroot:
    """A clean system in a folder; with `namespace`, its commands run in that network namespace, which is a host."""

    def __init__(self, root: Path, host: str = "", namespace: tuple[str, ...] = (), arch: str = NATIVE) -> None:
        self.arch = arch
        self.root = root
        self.host = host
        self.namespace = namespace

    def make(self, suite: str) -> None:
        """Makes the system, if it is not there."""
        if not (self.root / "made").exists():
            shutil.rmtree(self.root, ignore_errors=True)
            self.root.mkdir(parents=True)
            foreign = ["--foreign", f"--arch={FOREIGN[self.arch]}"] if self.arch in FOREIGN else []
            with (self.root.parent / f"{self.root.name}.log").open("w") as log:
                subprocess.run(
                    ["debootstrap", *foreign, "--variant=minbase", "--include=python3,python3-venv,ca-certificates",
                     suite, str(self.root), MIRROR, SCRIPT],
                    check=True, stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip
            if foreign:
                # In a user namespace no device can be made, as in the containers of lxc; the first stage has made them.
                self.run("/debootstrap/debootstrap --second-stage", {"container": "lxc"})
            (self.root / "made").touch()
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")

    def install(self, packages: str) -> None:
        """Installs packages of Debian; a mirror's list may be older than its own date allows."""
        self.run(
            "export DEBIAN_FRONTEND=noninteractive; apt-get -q -o Acquire::Check-Valid-Until=false update; "
            f"apt-get -q install -y --no-install-recommends {packages}"
        )

    def argv(self, command: str) -> list[str]:
        """Returns the words that run a shell command inside, with a /proc and, except under QEMU, its own host name."""
        if self.arch in FOREIGN:
            return [*self.namespace, str(QEMU_CHROOT), str(self.root), command]
        root = shlex.quote(str(self.root))
        name = f"hostname {self.host} && " if self.host else ""
        inner = (
            f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && {name}exec chroot {root} /bin/sh -ec "
        )
        spaces = ["--mount", "--pid", "--uts", "--fork", "--kill-child"]
        return [*self.namespace, "unshare", *spaces, "sh", "-c", inner + shlex.quote(command)]

    def environment(self, env: dict[str, str] | None = None) -> dict[str, str]:
        """Returns the variables of a command inside."""
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", **(env or {})}

    def run(self, command: str, env: dict[str, str] | None = None) -> str:
        """Runs a shell command inside; returns its output.

        Raises:
            RuntimeError: the command fails.
        """
        done = subprocess.run(
            self.argv(command), check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=LIMIT_SECONDS, env=self.environment(env),
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{command}: exit status {done.returncode}\n{done.stdout[-3000:]}")
        return done.stdout

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Writes a file of the system."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)


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
