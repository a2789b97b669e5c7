"""Builds the programs of benchmarks/gpu/run.sh, on a machine with or without the packages of scripts/setup.sh.

All files are in one build directory: programs where CMake puts them, the Python package under `site`, links to
libraries that this machine lacks under `lib`. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.bundle import CMAKE_FILE
from benchmarks.gpu.keeper import Commands, ask

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "sirtaki_python"
PACKAGE_FOLDERS = ("adapters/python/sirtaki", "adapters/python/sirtaki_backend")


class BuildError(Exception):
    """A build that failed; the text has the end of its output."""


class Build:
    """One build directory. `packages`: the unpacked files of benchmarks/gpu/bundle.py, or none."""

    def __init__(self, folder: Path, packages: Path | None, commands: Commands) -> None:
        self.folder = folder
        self._packages = packages
        self._commands = commands

    def configure(self, *, package: bool) -> None:
        """Configures a release build with CUDA for the GPUs of this machine; `package`: with the Python package."""
        command = ["cmake", "-S", str(ROOT), "-B", str(self.folder)]
        if shutil.which("ninja"):
            command += ["-G", "Ninja"]
        if self._packages is not None:
            command += ["-C", str(self._packages / CMAKE_FILE)]
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "SIRTAKI_CUDA": "ON",
            "SIRTAKI_PYTHON": "ON" if package else "OFF",
            "SIRTAKI_BATCH": "8",
            "SIRTAKI_WERROR": "OFF",
            "Python_EXECUTABLE": sys.executable,
            # A wheel would set the folder for the programs of the package.
            "SKBUILD_SCRIPTS_DIR": "bin",
        }
        # Machine code for other GPUs would only take time.
        if found := architectures():
            options["SIRTAKI_CUDA_ARCHITECTURES"] = ";".join(found)
        self._call([*command, *(f"-D{name}={value}" for name, value in options.items())])

    def build(self, targets: Sequence[str]) -> None:
        """Builds all targets in one go; the package is laid out as if installed."""
        jobs = str(len(os.sched_getaffinity(0)))
        self._call(["cmake", "--build", str(self.folder), "--parallel", jobs, "--target", *targets])
        if PACKAGE in targets:
            site = self.folder / "site"
            shutil.rmtree(site, ignore_errors=True)
            self._call(["cmake", "--install", str(self.folder), "--component", "python", "--prefix", str(site)])
            for name in PACKAGE_FOLDERS:
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, site / Path(name).name, dirs_exist_ok=True, ignore=ignore)

    def environment(self) -> dict[str, str]:
        """Variables for CMake and the built programs: paths of packages, launcher, libraries and training data."""
        found = dict(os.environ)
        search = [str(self.folder / "site")]
        if self._packages is not None:
            search.append(str(self._packages / "python"))
            libraries = self._link_missing_libraries(self._packages)
            found["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH")]))
            data = self._packages / "usr/share/datasets/fashion-mnist"
            if data.is_dir():
                found.setdefault("FASHION_MNIST", str(data))
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [*search, os.environ.get("PYTHONPATH")]))
        found["PATH"] = os.pathsep.join([str(self.folder / "site/bin"), found["PATH"]])
        return found

    def _link_missing_libraries(self, packages: Path) -> str:
        """Makes a folder with links to libraries whose names the linker of this machine does not know.

        Libraries that the machine has are left alone, because other code, such as modules of the interpreter, is
        linked with them.
        """
        known = _known_libraries()
        folder = (self.folder / "lib").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        for library in packages.absolute().glob("usr/lib/**/*.so.*"):
            link = folder / library.name
            link.unlink(missing_ok=True)
            if library.name not in known:
                link.symlink_to(library)
        return str(folder)

    def _call(self, command: Sequence[str]) -> None:
        if wrong := self._commands.call_quietly(command, self.environment()):
            raise BuildError(wrong)


def architectures() -> list[str]:
    """Architectures of the GPUs of this machine for CMake, as "90"; none if the driver does not tell them."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        listed = ask(command).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sorted({"".join(found) for found in re.findall(r"^(\d+)\.(\d)$", listed, re.MULTILINE)}, key=int)


def _known_libraries() -> set[str]:
    """Names of the libraries that the linker of this machine finds at run time."""
    ldconfig = shutil.which("ldconfig", path=os.pathsep.join([os.environ["PATH"], "/sbin", "/usr/sbin"]))
    if ldconfig is None:
        return set()
    listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    places = (line.strip().partition(" => ") for line in listed.splitlines())
    return {name.split()[0] for name, _, path in places if path and Path(path).exists()}
