"""`make release`: tests the tree, and stages wheels, source archive and site of this version in dist/.

Everything that dist/ held before is removed. The output ends with a list of the files with their digests, and of the
steps that a person does.

usage: release.py [--jobs N] [--skip STEP ...] [--list]; --list prints the steps and the checklist only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PYTHON = str(ROOT / ".venv/bin/python")
SDIST = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
CHECKLIST = """\
Before you publish version {version}:
  1. CHANGELOG.md: replace "unreleased" by the date, and read the section as a user would.
  2. make wheel ARCH=aarch64. make wheel-test, as root: the wheels in clean Debian systems. Commit
     benchmarks/results/install.json.
  3. README.md: its commands, tables and limits are those of this version.
  4. tests/api/python_api.txt: every name that went since the last version was deprecated before.
  5. Commit, and tag: git tag -s v{version}.
  6. Upload dist/*.whl and dist/*.tar.gz to the index; unpack the site on its server.
  7. CMakeLists.txt: the next version; CHANGELOG.md: a new section, unreleased."""


def version_of(root: Path) -> str:
    """Returns the version of the tree."""
    found = re.search(r"project\(sirtaki VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text())
    assert found is not None
    return found[1]


def problems(root: Path, version: str) -> list[str]:
    """Returns the reasons against a release of this tree."""
    found = []
    if not re.search(rf"^## {re.escape(version)}, \S", (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        found.append(f'CHANGELOG.md has no section "## {version}, ..."')
    status = subprocess.run(["git", "status", "--porcelain"], cwd=root, check=True, capture_output=True, text=True)
    if status.stdout:
        found.append(f"files are not committed:\n{status.stdout}")
    return found


def steps(jobs: str) -> dict[str, tuple[str, ...]]:
    """Returns the command of each step by name."""
    return {
        "test": ("make", "--no-print-directory", "test", f"JOBS={jobs}"),
        "wheels": ("make", "--no-print-directory", "wheel", f"JOBS={jobs}"),
        "source": (PYTHON, "-c", SDIST, str(DIST)),
        "site": ("make", "--no-print-directory", "docs"),
    }


def stage_site(site: Path, dist: Path, version: str) -> Path:
    """Packs the site into dist/. Returns the archive."""
    made = dist / f"sirtaki-site-{version}.tar.gz"
    with tarfile.open(made, "w:gz") as archive:
        archive.add(site, arcname=f"sirtaki-site-{version}")
    return made


def write_digests(dist: Path) -> str:
    """Writes SHA256SUMS for the files of dist/, in the form of sha256sum. Returns its text."""
    files = sorted(path for path in dist.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    text = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (dist / "SHA256SUMS").write_text(text)
    return text


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=str(os.cpu_count() or 1))
    parser.add_argument("--skip", action="append", default=[], choices=sorted(steps("1")), help="for a trial")
    parser.add_argument("--list", action="store_true", help="print the steps and the checklist only")
    args = parser.parse_args()
    version = version_of(ROOT)
    if args.list:
        print("\n".join(f"{name}: {' '.join(command)}" for name, command in steps(args.jobs).items()))
        print(CHECKLIST.format(version=version))
        return 0
    found = problems(ROOT, version)
    for text in found:
        print(f"release: {text}", file=sys.stderr)
    if found:
        return 1
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for name, command in steps(args.jobs).items():
        if name in args.skip:
            print(f"release: {name}: left out", flush=True)
            continue
        print(f"release: {name}", flush=True)
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            print(f"release: {name} failed; nothing is released", file=sys.stderr)
            return 1
    if "site" not in args.skip:
        stage_site(ROOT / "build/site", DIST, version)
    print(write_digests(DIST), end="")
    print(CHECKLIST.format(version=version))
    return 0


if __name__ == "__main__":
    sys.exit(main())
