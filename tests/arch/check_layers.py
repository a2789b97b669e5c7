"""Rejects every include that breaks the layers of ARCHITECTURE.md, and every code pattern that must be absent.

usage: check_layers.py [root]; prints each problem as path:line: rule: text, exit status 1 if there is one.
A comment `lint: allow(rule) reason` excuses its own line and the next, except from `layer` and `external`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from source_rules import source_problems
from source_tree import Problem, Source, Tree, report

# Sets shared by the rows below.
BASE = {"runtime/base", "runtime/base/config", "runtime/base/telemetry"}
SCHEDULER = {"scheduler", "scheduler/plan", "scheduler/link", "scheduler/dispatch", "scheduler/policies"}
CONTROL = {"runtime/control", "runtime/control/elastic"}
RENDEZVOUS = {"runtime/rendezvous", "runtime/rendezvous/auth", "runtime/rendezvous/link"}
NET = {*BASE, "kernels", "runtime/device", *RENDEZVOUS}
TRANSPORT = {
    *("runtime/net", "runtime/net/link", "runtime/net/tcp", "runtime/net/shm", "runtime/net/batch"),
    "runtime/net/collectives",
    *("runtime/net/gloo", "runtime/net/device", "runtime/net/device/nccl"),
}
ENGINE = {*NET, *TRANSPORT, "compression", "compression/codecs", *SCHEDULER, "runtime/hub", *CONTROL}
SESSION = {"runtime/engine", "runtime/engine/session", "runtime/engine/common"}

# Folder -> project folders that it may include besides itself. Rows are in order: no row names a later one.
LAYERS: dict[str, set[str]] = {
    "runtime/base": set(),
    "runtime/base/config": {"runtime/base"},
    "runtime/base/telemetry": {"runtime/base", "runtime/base/config"},
    "kernels": BASE,
    "compression": {*BASE, "kernels"},
    "compression/codecs": {*BASE, "kernels", "compression"},
    "scheduler/plan": BASE,
    "scheduler/link": {*BASE, "scheduler/plan"},
    "scheduler/dispatch": {*BASE, "scheduler/plan"},
    "scheduler/policies": {*BASE, "scheduler/plan"},
    "scheduler": {*BASE, "scheduler/plan", "scheduler/policies"},
    "runtime/control": {*BASE, *SCHEDULER},
    "runtime/control/elastic": {*BASE, "runtime/control"},
    "runtime/rendezvous/auth": BASE,
    "runtime/rendezvous/link": {*BASE, "runtime/rendezvous/auth"},
    "runtime/rendezvous": {*BASE, "runtime/rendezvous/auth", "runtime/rendezvous/link"},
    "runtime/hub": {*BASE, *CONTROL, *RENDEZVOUS},
    "runtime/device": {*BASE, "kernels"},
    "runtime/net/link": NET,
    "runtime/net/shm": {*NET, "runtime/net/link"},
    "runtime/net/tcp": {*NET, "runtime/net/link"},
    "runtime/net/batch": {*NET, "runtime/net/link", "runtime/net/shm"},
    "runtime/net/collectives": {*NET, "runtime/net/link", "runtime/net/shm", "runtime/net/batch"},
    "runtime/net/gloo": {*NET, "runtime/net/link", "runtime/net/collectives"},
    "runtime/net/device": {*NET, "runtime/net/link", "runtime/net/collectives"},
    "runtime/net/device/nccl": {*NET, "runtime/net/link", "runtime/net/collectives", "runtime/net/device"},
    "runtime/net": {*NET, "runtime/net/link", "runtime/net/collectives", "runtime/net/gloo"},
    "runtime/engine/common": ENGINE,
    "runtime/engine/epoch": {*ENGINE, "runtime/engine/common"},
    "runtime/engine/reduction": {*ENGINE, "runtime/engine/common"},
    "runtime/engine/device": {*ENGINE, "runtime/engine/common", "runtime/engine/reduction"},
    "runtime/engine/ops": {*ENGINE, "runtime/engine/common", "runtime/engine/epoch"},
    "runtime/engine/stream/plan": {*ENGINE, "runtime/engine/common", "runtime/engine/reduction"},
    "runtime/engine/stream": {
        *(*ENGINE, "runtime/engine/common", "runtime/engine/epoch", "runtime/engine/reduction"),
        *("runtime/engine/device", "runtime/engine/stream/plan"),
    },
    "runtime/engine": {
        *(*ENGINE, "runtime/engine/common", "runtime/engine/epoch", "runtime/engine/ops"),
        *("runtime/engine/stream", "runtime/engine/stream/plan"),
    },
    "runtime/engine/session": {
        *(*ENGINE, "runtime/engine", "runtime/engine/common", "runtime/engine/epoch", "runtime/engine/ops"),
        *("runtime/engine/stream", "runtime/engine/device"),
    },
    "runtime/engine/forecast": {
        *(*ENGINE, "runtime/engine", "runtime/engine/common", "runtime/engine/stream", "runtime/engine/stream/plan"),
    },
    "runtime/local_updates/controller": {*BASE, "scheduler/plan"},
    "runtime/local_updates": {*BASE, "kernels", "runtime/local_updates/controller", "runtime/engine/session"},
    "runtime/local_updates/forecast": {
        *(*BASE, "runtime/engine/forecast", "runtime/local_updates", "runtime/local_updates/controller"),
    },
    "adapters/c": {
        *(*BASE, *RENDEZVOUS, "runtime/hub", *SESSION),
        *("runtime/engine/forecast", "runtime/local_updates", "runtime/local_updates/forecast"),
    },
    "adapters/python": {"adapters/c"},
    "adapters/tensorflow": {"adapters/c"},
    "launcher/hosts": {*BASE, *RENDEZVOUS},
    "launcher/process": {*BASE, *RENDEZVOUS},
    "launcher/agent": {*BASE, *RENDEZVOUS, "launcher/hosts", "launcher/process"},
    "launcher/join": {*BASE, *RENDEZVOUS, "launcher/hosts", "launcher/process", "launcher/agent"},
    "launcher/links": {
        *(*BASE, "scheduler/plan", "adapters/c", "runtime/engine/forecast"),
        *("runtime/local_updates", "runtime/local_updates/forecast"),
    },
    "launcher": {
        *(*BASE, *RENDEZVOUS, "runtime/hub", "runtime/control"),
        *("launcher/hosts", "launcher/process", "launcher/agent", "launcher/join", "launcher/links"),
    },
    "examples": {"adapters/c"},
}
FREE_FOLDERS = ("tests", "benchmarks")
# Folder -> the only headers that other folders may include from it.
PUBLIC_HEADERS = {"adapters/c": {"adapters/c/sirtaki.h"}}

# Library -> (prefixes of its headers, folders that may use it, folders whose headers may show it, single files); a
# folder stands for those below it, too.
EXTERNALS: dict[str, tuple[tuple[str, ...], set[str], set[str], set[str]]] = {
    "Asio": (
        ("boost/",),
        {"runtime/rendezvous/link", "runtime/rendezvous", "runtime/net/tcp", "launcher"},
        {"runtime/rendezvous/link", "runtime/rendezvous", "runtime/net/tcp", "launcher"},
        set(),
    ),
    "Gloo": (("gloo/",), {"runtime/net/gloo"}, {"runtime/net/gloo"}, set()),
    "toml++": (("toml++/", "toml.hpp"), set(), set(), {"runtime/base/config/config_toml.cc"}),
    "Highway": (("hwy/",), {"kernels"}, {"kernels"}, set()),
    "OpenSSL": (("openssl/",), {"runtime/rendezvous/auth"}, set(), set()),
    "xxHash": (("xxhash.h",), {"runtime/base", "kernels", "scheduler"}, set(), set()),
    "CLI11": (("CLI/",), {"launcher"}, set(), set()),
    "CUDA": (("cuda", "cub/", "nccl", "driver_types.h"), {"kernels", "runtime/device"}, set(), set()),
    "Python": (("Python.h", "nanobind/", "pybind11/"), {"adapters/python"}, {"adapters/python"}, set()),
    "a framework": (("torch/", "ATen/", "c10/", "tensorflow/"), set(), set(), set()),
}


def folder_of(path: str) -> str | None:
    """Returns the layer of a file; "" for folders without rules, None if a new folder lacks a row."""
    known = [f for f in LAYERS if path.startswith(f + "/")]
    if known:
        return max(known, key=len)
    return "" if path.startswith(FREE_FOLDERS) else None


def within(folder: str, tops: set[str]) -> bool:
    """Returns whether `folder` is one of `tops` or lies below one."""
    return any(folder == top or folder.startswith(top + "/") for top in tops)


def external_of(name: str) -> str | None:
    """Returns the library of a system header."""
    return next((lib for lib, row in EXTERNALS.items() if name.startswith(row[0])), None)


def include_problems(tree: Tree, source: Source, folder: str) -> Iterator[Problem]:
    """Yields the include lines of one file that break LAYERS or EXTERNALS."""
    for include in source.includes:
        library = external_of(include.name)
        if library is not None:
            _, users, _, files = EXTERNALS[library]
            if not within(folder, users) and source.path not in files:
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
    """Yields libraries that a header exposes, directly or through its includes, to folders that may not see them."""
    for name in sorted(tree.reached(source)):
        library = external_of(name)
        if library is not None and not within(folder, EXTERNALS[library][2]):
            yield Problem(source.path, 1, "external", f"header shows {library} (<{name}>) to its users")


def layer_problems(tree: Tree) -> Iterator[Problem]:
    """Yields the problems of all include rules over the tree."""
    for source in tree.cpp():
        folder = folder_of(source.path)
        if folder is None:
            yield Problem(source.path, 1, "layer", "this folder has no row in LAYERS")
        elif folder:
            yield from include_problems(tree, source, folder)
            if source.is_header:
                yield from leak_problems(tree, source, folder)


def check(root: Path) -> list[Problem]:
    """Returns every problem below `root`, waivers applied."""
    tree = Tree(root)
    problems = list(layer_problems(tree))
    for problem in source_problems(tree):
        if (problem.rule, problem.line) not in tree.sources[problem.path].waivers:
            problems.append(problem)
    return sorted(problems, key=lambda p: (p.path, p.line, p.rule))


def main() -> int:
    """Command line."""
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    return 0 if report(check(root)) else 1


if __name__ == "__main__":
    sys.exit(main())
