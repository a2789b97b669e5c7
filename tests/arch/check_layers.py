"""Rejects every include that breaks the layers of ARCHITECTURE.md, and every absence that is no longer one.

usage: check_layers.py [root]; prints each problem as path:line: rule: text, exit status 1 if there is one.
A comment `lint: allow(rule) reason` excuses its own line and the next, except from `layer` and `external`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from source_rules import source_problems
from source_tree import Problem, Source, Tree

# Folder -> project folders it may include besides itself.
LAYERS: dict[str, set[str]] = {
    "runtime/base": set(),
    "kernels": {"runtime/base"},
    "compression": {"runtime/base", "kernels"},
    "scheduler": {"runtime/base"},
    "runtime/control": {"runtime/base", "scheduler"},
    "runtime/rendezvous": {"runtime/base"},
    "runtime/hub": {"runtime/base", "runtime/control", "runtime/rendezvous"},
    "runtime/device": {"runtime/base", "kernels"},
    "runtime/net": {"runtime/base", "kernels", "runtime/rendezvous", "runtime/device"},
    "runtime/engine": {
        *("runtime/base", "kernels", "compression", "scheduler", "runtime/device"),
        *("runtime/control", "runtime/rendezvous", "runtime/hub", "runtime/net"),
    },
    "adapters/c": {"runtime/base", "runtime/rendezvous", "runtime/engine", "runtime/hub"},
    "adapters/python": {"adapters/c"},
    "adapters/tensorflow": {"adapters/c"},
    "launcher": {"runtime/base", "runtime/rendezvous", "runtime/hub", "runtime/control"},
    "examples": {"adapters/c"},
}
FREE_FOLDERS = ("tests", "benchmarks")
# The only headers that a foreign folder may include from these.
PUBLIC_HEADERS = {"adapters/c": {"adapters/c/sirtaki.h"}}

# Library -> (prefixes of its headers, folders that may use it, folders whose headers may show it, single files).
EXTERNALS: dict[str, tuple[tuple[str, ...], set[str], set[str], set[str]]] = {
    "Asio": (
        ("boost/",),
        {"runtime/rendezvous", "runtime/net", "launcher"},
        {"runtime/rendezvous", "runtime/net", "launcher"},
        set(),
    ),
    "Gloo": (("gloo/",), {"runtime/net"}, {"runtime/net"}, set()),
    "toml++": (("toml++/", "toml.hpp"), set(), set(), {"runtime/base/config/config_toml.cc"}),
    "Highway": (("hwy/",), {"kernels"}, {"kernels"}, set()),
    "OpenSSL": (("openssl/",), {"runtime/rendezvous"}, set(), set()),
    "xxHash": (("xxhash.h",), {"runtime/base", "kernels", "scheduler"}, set(), set()),
    "CLI11": (("CLI/",), {"launcher"}, set(), set()),
    "CUDA": (("cuda", "cub/", "nccl", "driver_types.h"), {"kernels", "runtime/device"}, set(), set()),
    "Python": (("Python.h", "nanobind/", "pybind11/"), {"adapters/python"}, {"adapters/python"}, set()),
    "a framework": (("torch/", "ATen/", "c10/", "tensorflow/"), set(), set(), set()),
}


def folder_of(path: str) -> str | None:
    """The layer a file belongs to; "" for folders without rules, None where a new folder lacks a row."""
    known = [f for f in LAYERS if path.startswith(f + "/")]
    if known:
        return max(known, key=len)
    return "" if path.startswith(FREE_FOLDERS) else None


def external_of(name: str) -> str | None:
    """The library a system header belongs to."""
    return next((lib for lib, row in EXTERNALS.items() if name.startswith(row[0])), None)


def include_problems(tree: Tree, source: Source, folder: str) -> Iterator[Problem]:
    """Include lines of one file against LAYERS and EXTERNALS."""
    for include in source.includes:
        library = external_of(include.name)
        if library is not None:
            _, users, _, files = EXTERNALS[library]
            if folder not in users and source.path not in files:
                yield Problem(source.path, include.line, "external", f"{folder} may not use {library}")
            continue
        if include.system:
            continue
        if include.name not in tree.sources:
            yield Problem(source.path, include.line, "path", f'"{include.name}" is not a path from the root')
            continue
        target = folder_of(include.name)
        if target == folder:
            continue
        if target not in LAYERS[folder]:
            yield Problem(source.path, include.line, "layer", f"{folder} may not include {include.name}")
        elif include.name not in PUBLIC_HEADERS.get(target, {include.name}):
            yield Problem(source.path, include.line, "layer", f"{include.name} is private to {target}")


def leak_problems(tree: Tree, source: Source, folder: str) -> Iterator[Problem]:
    """A header that shows a library to folders that may not see it, itself or through what it includes."""
    for name in sorted(tree.reached(source)):
        library = external_of(name)
        if library is not None and folder not in EXTERNALS[library][2]:
            yield Problem(source.path, 1, "external", f"header shows {library} (<{name}>) to its users")


def layer_problems(tree: Tree) -> Iterator[Problem]:
    """All include rules over the tree."""
    for source in tree.cpp():
        folder = folder_of(source.path)
        if folder is None:
            yield Problem(source.path, 1, "layer", "this folder has no row in LAYERS")
        elif folder:
            yield from include_problems(tree, source, folder)
            if source.is_header:
                yield from leak_problems(tree, source, folder)


def check(root: Path) -> list[Problem]:
    """Every problem below `root`, waivers applied."""
    tree = Tree(root)
    problems = list(layer_problems(tree))
    for problem in source_problems(tree):
        if (problem.rule, problem.line) not in tree.sources[problem.path].waivers:
            problems.append(problem)
    return sorted(problems, key=lambda p: (p.path, p.line, p.rule))


def main() -> int:
    """Command line."""
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    problems = check(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
