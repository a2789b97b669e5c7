"""`make lint`: layers, map, prose, links, decisions, clang-format, self-contained headers, clang-tidy, ruff, mypy.

Every checker runs even if an earlier one fails. Results of clang-tidy and of the header check are cached by content for
all clones of a user, so that only files that changed, or whose project headers changed, are checked again. clang-tidy
gets several sources at once, since most of its time is spent on headers that they share. With --changed, as in `make
check`, clang-format, the header check and clang-tidy check only the files that this branch has changed, and mypy runs
if a Python file has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/arch"))

from check_decisions import decision_problems  # noqa: E402
from check_layers import check  # noqa: E402
from check_links import link_problems, pages_of  # noqa: E402
from check_map import map_problems  # noqa: E402
from check_prose import prose_problems  # noqa: E402
from source_tree import CPP, Source, Tree, report  # noqa: E402

BIN = ROOT / ".venv/bin"
# Names of checks that passed. All clones share them, as they share the compiler cache.
PASSED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sirtaki/lint"
PASSED_DAYS = 30  # since the last use
TIDY_BUILD = ROOT / "build/tidy"
TIDY_FOLDERS = ("runtime", "kernels", "compression", "scheduler", "adapters", "launcher")
# These files compile only with CUDA, and only without Gloo.
UNTIDIED = {"kernels/cuda_kernels.cc", "runtime/net/gloo/no_gloo.cc"}
PYTHON_PATHS = ("adapters", "benchmarks", "examples", "scripts", "tests")
# Headers are compiled alone, unless a .cc of the same name proves them self-contained.
COMPILE = (
    "g++",
    "-std=c++20",
    "-fsyntax-only",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-I",
    str(ROOT),
    "-x",
    "c++",
    "-include",
)
SUMMARY = re.compile(r"\d+ warnings? (and \d+ errors? )?generated\.|Suppressed .*|Use -header-filter.*")


@dataclass(frozen=True)
class Job:
    """One file, or batch of files, for one tool: the command, and the digest of all inputs of the verdict."""

    path: str
    command: tuple[str, ...]
    digest: str
    folder: Path


def call(command: Sequence[str], folder: Path = ROOT) -> tuple[int, str]:
    """Returns exit status and joined output of a command."""
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def closure_digest(tree: Tree, sources: list[Source], *extra: str) -> str:
    """Returns a digest of files, of the project headers they reach and of `extra`; the same one in all clones."""
    seen, todo = {source.path for source in sources}, list(sources)
    while todo:
        for include in todo.pop().includes:
            if include.name in tree.sources and include.name not in seen:
                seen.add(include.name)
                todo.append(tree.sources[include.name])
    digest = hashlib.sha256("\0".join(extra).replace(str(ROOT), ".").encode())
    for path in sorted(seen):
        digest.update(f"\0{path}\0{tree.sources[path].text}".encode())
    return digest.hexdigest()


def run_jobs(tool: str, jobs: list[Job], workers: int) -> bool:
    """Runs the jobs whose digest has not passed before; prints the output of failures."""
    passed_dir = PASSED / tool
    passed_dir.mkdir(parents=True, exist_ok=True)
    todo = []
    for job in jobs:
        if (passed_dir / job.digest).exists():
            (passed_dir / job.digest).touch()
        else:
            todo.append(job)
    print(f"lint: {tool}: {len(todo)} of {len(jobs)} to look at", flush=True)

    def one(job: Job) -> bool:
        status, output = call(job.command, job.folder)
        if status == 0:
            (passed_dir / job.digest).touch()
            return True
        lines = [line for line in output.splitlines() if not SUMMARY.fullmatch(line)]
        print("\n".join([f"lint: {tool}: {job.path}", *lines]), flush=True)
        return False

    with ThreadPoolExecutor(workers) as pool:
        verdicts = list(pool.map(one, todo))
    oldest = time.time() - PASSED_DAYS * 24 * 3600
    for passed in passed_dir.iterdir():
        with suppress(FileNotFoundError):  # another clone forgets it, too
            if passed.stat().st_mtime < oldest:
                passed.unlink()
    return all(verdicts)


def changed_files() -> frozenset[str]:
    """Returns the files that differ from the merge base with main; on main, from the previous commit."""
    head, base = (call(["git", "rev-parse", "--verify", "-q", name])[1].strip() for name in ("HEAD", "HEAD~1"))
    for branch in ("origin/main", "main"):
        status, output = call(["git", "merge-base", "HEAD", branch])
        if status == 0 and output.strip() != head:
            base = output.strip()
            break
    lists = (["diff", "--name-only", base or head], ["ls-files", "--others", "--exclude-standard"])
    return frozenset(path for arguments in lists for path in call(["git", *arguments])[1].splitlines())


def lint_layers(_tree: Tree, _workers: int) -> bool:
    """Checks include rules and absences."""
    return report(check(ROOT))


def lint_map(_tree: Tree, _workers: int) -> bool:
    """Checks the README.md of each folder against the tree."""
    return report(sorted(map_problems(ROOT), key=str))


def lint_prose(_tree: Tree, _workers: int) -> bool:
    """Checks the English of comments, docstrings and pages."""
    return report(prose_problems(ROOT))


def lint_links(_tree: Tree, _workers: int) -> bool:
    """Checks the links of all pages, and the names that they give to code."""
    return report(link_problems(ROOT, pages_of(ROOT)))


def lint_decisions(_tree: Tree, _workers: int) -> bool:
    """Checks the headers and numbers of docs/decisions and their index."""
    return report(decision_problems(ROOT))


def lint_format(tree: Tree, _workers: int, changed: frozenset[str] | None = None) -> bool:
    """Checks the layout of C and C++ files."""
    files = [source.path for source in tree.cpp() if not source.path.endswith(".inc")]
    if changed is not None:
        files = [path for path in files if path in changed]
        if not files:
            return True
    status, output = call(["clang-format", "--dry-run", "-Werror", *files])
    bad = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", output, re.MULTILINE)))
    if status != 0:
        print("\n".join([f"lint: clang-format: {path}" for path in bad] or [output]))
        print("lint: clang-format: `make format` repairs the layout")
    return status == 0


def lint_headers(tree: Tree, workers: int, changed: frozenset[str] | None = None) -> bool:
    """Compiles headers alone, unless a .cc of the same name includes them first."""
    version, jobs = compiler_version(), []
    for source in tree.cpp():
        if not source.path.endswith(".h") or source.path.endswith("-inl.h"):
            continue
        if source.path[:-2] + ".cc" in tree.sources or (changed is not None and source.path not in changed):
            continue
        command = (*COMPILE, source.path, "/dev/null")
        jobs.append(Job(source.path, command, closure_digest(tree, [source], version, *command), ROOT))
    return run_jobs("headers", jobs, workers)


def batched_sources(tree: Tree, path: Path) -> list[Source]:
    """Returns the sources of the project in a translation unit: the file itself, or the batch that CMake has made."""
    paths = [path.as_posix()]
    if TIDY_BUILD in path.parents:
        paths = re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
    names = [name.removeprefix(f"{ROOT.as_posix()}/") for name in paths]
    return [tree.sources[name] for name in names if name in tree.sources]


def tidy_units(tree: Tree) -> Iterator[tuple[str, list[Source], list[str]]]:
    """Yields the translation units of the tidy preset: path, sources of the project in it, relevant flags.

    Test bodies are left to the compilers and sanitizers.
    """
    for entry in json.loads((TIDY_BUILD / "compile_commands.json").read_text()):
        sources = batched_sources(tree, Path(entry["file"]))
        if sources and not sources[0].path.startswith("tests/"):
            words = iter(shlex.split(entry["command"]))
            flags: list[str] = []
            for word in words:
                if word == "-isystem":
                    flags += [word, next(words)]
                elif word.startswith(("-I", "-D", "-std")):
                    flags.append(word)
            yield entry["file"], sources, flags


def compiler_version() -> str:
    """Returns the version of g++ and of the headers that setup installs."""
    return call(["g++", "--version"])[1] + (ROOT / "scripts/requirements.txt").read_text()


def tidy_version() -> str:
    """Returns version and configuration of clang-tidy, on which its verdicts depend beside the source."""
    return call(["clang-tidy", "--version"])[1] + (ROOT / ".clang-tidy").read_text() + compiler_version()


def tidy_jobs(tree: Tree) -> list[Job]:
    """Returns one job for each translation unit of the tidy preset."""
    version, jobs = tidy_version(), []
    options = ("-quiet", "-p", str(TIDY_BUILD), "--extra-arg=-Wno-unknown-warning-option")
    for path, sources, flags in tidy_units(tree):
        names = ", ".join(source.path for source in sources)
        digest = closure_digest(tree, sources, version, *flags)
        jobs.append(Job(names, ("clang-tidy", *options, path), digest, ROOT))
    return jobs


def changed_tidy_jobs(tree: Tree, changed: frozenset[str]) -> list[Job]:
    """Returns one job for each changed source of the tidy preset; the .cc of the same name covers a changed header.

    Another job compiles the batch of a changed source: sources that are right alone may share a name.
    """
    version, jobs = tidy_version(), []
    for path, sources, flags in tidy_units(tree):
        found = [s for s in sources if not changed.isdisjoint({s.path, re.sub(r"\.cc$", ".h", s.path)})]
        for source in found:
            command = ("clang-tidy", "-quiet", source.path, "--", *flags, "-Wno-unknown-warning-option")
            jobs.append(Job(source.path, command, closure_digest(tree, [source], version, *flags), ROOT))
        if found and len(sources) > 1:
            together = f"{found[0].path} and {len(sources) - 1} more"
            command = ("g++", "-fsyntax-only", *flags, path)
            jobs.append(Job(together, command, closure_digest(tree, sources, version, *command), ROOT))
    return jobs


def forgotten_sources(tree: Tree, jobs: list[Job]) -> list[str]:
    """Returns sources of the libraries that no job covers, since batched_sources() has not found them."""
    seen = UNTIDIED.union(path for job in jobs for path in job.path.split(", "))
    libraries = tuple(f"{name}/" for name in TIDY_FOLDERS)
    return [
        s.path for s in tree.cpp() if s.path.startswith(libraries) and s.path.endswith(".cc") and s.path not in seen
    ]


def lint_tidy(tree: Tree, workers: int, changed: frozenset[str] | None = None) -> bool:
    """Runs clang-tidy: names, bugs, cost, concurrency, function size."""
    if changed is not None and not any(Path(path).suffix in CPP for path in changed):
        return True
    status, output = call(["cmake", "--preset", "tidy", "--log-level=WARNING"])
    if status != 0:
        print(output)
        return False
    if changed is not None:
        return run_jobs("clang-tidy-changed", changed_tidy_jobs(tree, changed), workers)
    jobs = tidy_jobs(tree)
    forgotten = forgotten_sources(tree, jobs)
    for path in forgotten:
        print(f"lint: clang-tidy: {path} is in no target of the preset tidy")
    return run_jobs("clang-tidy", jobs, workers) and not forgotten


def python_paths() -> list[str]:
    """Returns the existing folders with Python code."""
    return [path for path in PYTHON_PATHS if (ROOT / path).is_dir()]


def lint_ruff(_tree: Tree, _workers: int) -> bool:
    """Checks Python style and layout."""
    good = True
    for arguments in (["check", "--quiet"], ["format", "--check", "--quiet"]):
        status, output = call([str(BIN / "ruff"), *arguments, *python_paths()])
        print(output, end="")
        good &= status == 0
    if not good:
        print("lint: ruff: `make format` repairs the layout")
    return good


def lint_types(_tree: Tree, _workers: int, changed: frozenset[str] | None = None) -> bool:
    """Checks the types of the Python packages; results are cached in build/lint/mypy."""
    if changed is not None and not any(path.endswith((".py", ".pyi", "pyproject.toml")) for path in changed):
        return True
    status, output = call([sys.executable, "-m", "mypy", "--no-error-summary"])
    print(output, end="")
    return status == 0


CHECKS: dict[str, Callable[..., bool]] = {
    "layers": lint_layers,
    "map": lint_map,
    "prose": lint_prose,
    "links": lint_links,
    "decisions": lint_decisions,
    "clang-format": lint_format,
    "ruff": lint_ruff,
    "mypy": lint_types,
    "headers": lint_headers,
    "clang-tidy": lint_tidy,
}

#: Checkers that accept a selection of files. The others take a second for all files.
BY_FILE = ("clang-format", "mypy", "headers", "clang-tidy")


def fix() -> int:
    """Rewrites files in the project's layout."""
    files = [source.path for source in Tree(ROOT).cpp() if not source.path.endswith(".inc")]
    status = call(["clang-format", "-i", *files])[0]
    for arguments in (["check", "--fix", "--quiet"], ["format", "--quiet"]):
        code, output = call([str(BIN / "ruff"), *arguments, *python_paths()])
        print(output, end="")
        status |= code
    return status


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=sorted(CHECKS), action="append", help="run this checker alone")
    parser.add_argument("--changed", action="store_true", help="look at files that this branch has changed")
    parser.add_argument("--fix", action="store_true", help="rewrite files in the project's layout instead")
    args = parser.parse_args()
    if args.fix:
        return fix()
    tree = Tree(ROOT)
    checks = dict(CHECKS)
    if args.changed:
        checks |= {name: partial(CHECKS[name], changed=changed_files()) for name in BY_FILE}
    failed = []
    for name, run in checks.items():
        if args.only and name not in args.only:
            continue
        begin = time.monotonic()
        good = run(tree, args.jobs)
        print(f"lint: {name}: {'ok' if good else 'FAILED'} ({time.monotonic() - begin:.1f} s)", flush=True)
        if not good:
            failed.append(name)
    if failed:
        print(f"lint: failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
