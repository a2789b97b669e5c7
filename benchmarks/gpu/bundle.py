"""Makes a folder with all files that build and run need beyond the compilers, CUDA and torch of a machine.

    benchmarks/gpu/run.sh --bundle DIR

Run it on a machine with the packages of scripts/setup.sh; the folder is for a machine with a GPU that has neither these
packages nor a package index. DIR has one file, an archive of these: `usr` holds files of Debian packages (headers,
libraries, the training data, and the part of Boost that Asio includes), `python` holds Python packages for any version
of Python, and `packages.cmake` sets the paths for CMake.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Limit of the files of the repository, which travel with the bundle: together they are to take less than 60 MiB.
TREE_BYTES = 16 * 2**20
LIMIT_BYTES = 60 * 2**20 - TREE_BYTES
#: Marks a folder as a bundle.
ARCHIVE = "packages.tar.gz"
#: Sets the paths for CMake.
CMAKE_FILE = "packages.cmake"
#: Packages that CMake looks for, packages that their libraries are linked with, and the training data.
PACKAGES = (
    *("libgloo-dev", "libgloo0", "libhiredis0.14", "libibverbs1", "libnl-3-200", "libnl-route-3-200"),
    *("libhwy-dev", "libhwy1", "libssl-dev", "libssl3", "libxxhash-dev", "libxxhash0", "libcli11-dev"),
    *("libtomlplusplus-dev", "libgtest-dev", "libbenchmark-dev", "libbenchmark1debian", "dataset-fashion-mnist"),
)
KEPT = ("/usr/include/*", "/usr/lib/*", "/usr/share/cmake/*", "/usr/share/datasets/*")
#: Large files that no part of the build or run uses.
LEFT_OUT = (
    *("*.pc", "*/libcrypto.a", "*/libssl.*", "*hwy_contrib*", "*hwy_test*", "*/libtomlplusplus.so"),
    *("*/ossl-modules/*", "*/engines-3/*"),
)
BOOST = Path("/usr/include/boost")
#: Parts of Boost that are too large to copy whole: only the files that Asio includes here are taken.
LARGE_PARTS = ("mpl", "numeric", "preprocessor")
PYTHON_PACKAGES = ("cloudpickle", "nanobind")


class BundleError(Exception):
    """Reason why no bundle can be made."""


def package_files(package: str) -> Iterator[Path]:
    """Yields the files and links of an installed package that a build or a run needs."""
    done = subprocess.run(["dpkg-query", "-L", package], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BundleError(f"{package} is not installed (scripts/setup.sh system installs it, or what needs it)")
    for line in done.stdout.splitlines():
        # Lists of packages name /lib, which is a link to /usr/lib.
        path = Path("/usr" + line if line.startswith("/lib") else line)
        if path.is_dir() or not any(fnmatch.fnmatch(str(path), kept) for kept in KEPT):
            continue
        if not any(fnmatch.fnmatch(str(path), left) for left in LEFT_OUT):
            yield path


def boost_files() -> set[Path]:
    """Boost headers that the compiler reads for the sources of this project, and all headers of the small parts."""
    sources = (path for folder in ("runtime", "launcher") for path in (ROOT / folder).rglob("*.[ch]*"))
    names = {name for path in sources for name in re.findall(r"^#include (<boost/.+>)", path.read_text(), re.MULTILINE)}
    done = subprocess.run(
        [os.environ.get("CXX", "g++"), "-std=c++20", "-DBOOST_ASIO_SEPARATE_COMPILATION", "-M", "-x", "c++", "-"],
        input="".join(f"#include {name}\n" for name in sorted(names)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BundleError(f"the compiler does not find what Asio reads:\n{done.stderr}")
    read = {Path(word) for word in done.stdout.split() if word.startswith(f"{BOOST}/")}
    parts = {path.relative_to(BOOST).parts[0] for path in read} - set(LARGE_PARTS)
    return read | {path for part in parts for path in (BOOST / part).rglob("*") if path.is_file()}


def python_files(name: str) -> Iterator[Path]:
    """Yields the files of a Python package."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise BundleError(f"the Python package {name} is not installed (scripts/setup.sh python does it)")
    yield from (p for p in Path(found.submodule_search_locations[0]).rglob("*") if "__pycache__" not in p.parts)


def _copy(paths: Iterable[Path], base: Path, to: Path) -> None:
    for path in paths:
        target = to / path.relative_to(base)
        if path.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)


def make(folder: Path) -> int:
    """Writes the bundle, replaces an older one, and returns the bytes of the bundle."""
    archive = folder / ARCHIVE
    if folder.exists() and any(folder.iterdir()) and not archive.is_file():
        raise BundleError(f"{folder} holds something else: name a folder that is empty or not there")
    files = [path for package in PACKAGES for path in package_files(package)] + sorted(boost_files())
    modules = {name: list(python_files(name)) for name in PYTHON_PACKAGES}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place)
        shutil.copy2(ROOT / "benchmarks/gpu/bundle.cmake", tree / CMAKE_FILE)
        _copy(files, Path("/"), tree)
        for name, paths in modules.items():
            _copy(paths, next(p for p in paths[0].parents if p.name == name).parent, tree / "python")
        subprocess.run(["tar", "-czf", str(archive), "-C", place, "."], check=True)
    size = archive.stat().st_size
    if size > LIMIT_BYTES:
        archive.unlink()
        raise BundleError(f"it takes {size / 2**20:.1f} MiB, more than the {LIMIT_BYTES // 2**20} MiB it may have")
    return size


def unpack(folder: Path, to: Path) -> None:
    """Replaces `to` by the files of the bundle in `folder`."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    subprocess.run(["tar", "-xzf", str(folder / ARCHIVE), "-C", str(to)], check=True)
