"""Checks registers, stack, shared memory and spills of every CUDA kernel against a table of limits.

usage: check_cuda_resources.py --limits kernels/cuda_resources.txt [--architectures LIST] OBJECT...
The build keeps the report of ptxas on the kernels of an object as OBJECT.resources. A row of the table is `name |
registers | stack bytes | shared bytes`; `*` in a name matches any text. Every kernel must match exactly one row, every
row a kernel; no kernel may spill registers. The limits hold for TUNED alone. LIST has the form of
CMAKE_CUDA_ARCHITECTURES; every kernel must have machine code for each of its architectures that is not only virtual.
Exit status 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The architecture that the kernels are tuned for; older ones need more registers and hold fewer threads.
TUNED = "sm_90"
COMPILING = re.compile(r"ptxas info\s*: Compiling entry function '(\w+)' for '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"ptxas info\s*: Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
NAMESPACES = re.compile(r"^void |sirtaki::|kernels::|cuda::|\bref::|\(anonymous namespace\)::|_GLOBAL__N_\w+::")


@dataclass(frozen=True)
class Usage:
    """Resources of one kernel on one architecture."""

    kernel: str
    architecture: str
    registers: int
    stack: int
    shared: int
    spills: int


@dataclass(frozen=True)
class Limit:
    """A row of the table."""

    pattern: str
    registers: int
    stack: int
    shared: int


class UnreadableError(Exception):
    """The text is neither a listing nor a table."""


def parse_listing(text: str) -> list[Usage]:
    """Returns the kernels in the output of `ptxas -v`, by their mangled names."""
    usages = []
    parts = COMPILING.split(text)
    for name, architecture, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        frame, used, shared = FRAME.search(body), USED.search(body), SHARED.search(body)
        if frame is None or used is None:
            raise UnreadableError(f"no registers or no stack frame in the listing of {name}")
        spills = int(frame[2]) + int(frame[3])
        usages.append(
            Usage(name, architecture, int(used[1]), int(frame[1]), 0 if shared is None else int(shared[1]), spills)
        )
    return usages


def parse_limits(text: str) -> list[Limit]:
    """Returns the rows of the table; lines that begin with # are comments."""
    limits = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 4 or not all(field.isdigit() for field in fields[1:]):
            raise UnreadableError(f"line {number} is no row `name | registers | stack | shared`: {line}")
        limits.append(Limit(fields[0], *map(int, fields[1:])))
    return limits


def short_name(demangled: str) -> str:
    """Shortens 'void sirtaki::kernels::cuda::(anonymous namespace)::add<float>(Args)' to 'add<float>'."""
    name = NAMESPACES.sub("", demangled)
    depth = 0
    for at, character in enumerate(name):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "(" and depth == 0:
            return name[:at]
    return name


def demangle(names: Iterable[str]) -> list[str]:
    """Returns the short names, in order."""
    text = "\n".join(names)
    done = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True)
    return [short_name(line) for line in done.stdout.splitlines()]


def problems(usages: Sequence[Usage], limits: Sequence[Limit]) -> list[str]:
    """Returns kernels above a limit, kernels without one, and rows without a kernel."""
    found = [] if usages else ["there is no kernel in any listing"]
    unused = set(limits)
    for usage in usages:
        where = f"{usage.kernel} ({usage.architecture})"
        rows = [limit for limit in limits if fnmatch.fnmatchcase(usage.kernel, limit.pattern)]
        unused -= set(rows)
        if len(rows) != 1:
            found.append(f"{where}: {len(rows)} rows of the table fit, not 1")
        if usage.architecture != TUNED:
            continue
        if usage.spills:
            found.append(f"{where}: {usage.spills} bytes of spills")
        for row in rows:
            for what in ("registers", "stack", "shared"):
                if getattr(usage, what) > getattr(row, what):
                    found.append(f"{where}: {what} {getattr(usage, what)}, at most {getattr(row, what)}")
    return found + sorted(f"no kernel is called {limit.pattern}" for limit in unused)


def without_code(usages: Sequence[Usage], architectures: str) -> list[str]:
    """Returns kernels without machine code for one of the architectures, given as "75-real;80-real;90"."""
    wanted = {f"sm_{one.removesuffix('-real')}" for one in architectures.split(";") if not one.endswith("-virtual")}
    there: dict[str, set[str]] = {}
    for usage in usages:
        there.setdefault(usage.kernel, set()).add(usage.architecture)
    return [f"{name}: no code for {', '.join(sorted(wanted - has))}" for name, has in there.items() if wanted - has]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limits", type=Path, required=True)
    parser.add_argument("--architectures", default="")
    parser.add_argument("objects", nargs="+", help="objects of .cu files; others are passed over")
    arguments = parser.parse_args()
    usages: list[Usage] = []
    for path in ";".join(arguments.objects).split(";"):
        if path.endswith(".cu.o"):
            usages += parse_listing(Path(path + ".resources").read_text())
    names = demangle(usage.kernel for usage in usages)
    usages = [Usage(name, *list(vars(usage).values())[1:]) for name, usage in zip(names, usages, strict=True)]
    for usage in sorted(usages, key=lambda u: u.kernel):
        print(
            f"{usage.kernel} ({usage.architecture}): {usage.registers} registers, {usage.stack} bytes of stack, "
            f"{usage.shared} of shared memory, {usage.spills} spilled"
        )
    found = problems(usages, parse_limits(arguments.limits.read_text()))
    found += without_code(usages, arguments.architectures) if arguments.architectures else []
    for problem in found:
        print(f"cuda_resources: {problem}")
    print(f"cuda_resources: {len(usages)} kernels, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
