"""Modules of the Python packages do not import each other in a cycle, and no folder of them is too full.

Imports inside functions count: they postpone a cycle to the first call. A package is imported before its submodules in
any case, so that implied import is no edge; `from package import name` is one to the submodule `name` where there is
one, else to the package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[2] / "adapters/python"
#: Folders that hold packages of one level: `sirtakirun --horovod` puts the second on the path.
ROOTS = (PYTHON, PYTHON / "sirtaki/_horovod")
MAX_FILES = 25

Graph = dict[str, set[str]]


def modules_of(roots: tuple[Path, ...]) -> dict[str, Path]:
    """Returns the file of each module by dotted name; the longest root names a module."""
    found: dict[str, Path] = {}
    for path in sorted(roots[0].rglob("*.py")):
        root = max((r for r in roots if path.is_relative_to(r)), key=lambda r: len(r.parts))
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_names(tree: ast.AST, package: str) -> Iterator[tuple[str, str | None]]:
    """Yields (module, name or None) of every import statement and of importlib.import_module() of a literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from ((arg.value, None) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def import_graph(roots: tuple[Path, ...]) -> Graph:
    """Returns the modules that each module imports, of those below `roots`."""
    modules = modules_of(roots)
    graph: Graph = {}
    for module, path in modules.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        targets = set()
        for base, name in imported_names(ast.parse(path.read_text()), package):
            # The extension module has no source here, and imports nothing.
            if name == "_core":
                continue
            targets.add(f"{base}.{name}" if f"{base}.{name}" in modules else base)
        graph[module] = {target for target in targets if target in modules}
    return graph


def find_cycle(graph: Graph) -> list[str]:
    """Returns the modules of one cycle, the first one at both ends; [] without a cycle."""
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        path.append(module)
        cycle = next((found for target in sorted(graph[module]) if (found := visit(target))), [])
        path.pop()
        done.add(module)
        return cycle

    return next((found for module in sorted(graph) if (found := visit(module))), [])


def test_packages_have_no_import_cycle() -> None:
    graph = import_graph(ROOTS)
    assert {"sirtaki", "sirtaki.torch.ops", "sirtaki_backend", "horovod.torch"} <= graph.keys()
    assert "sirtaki.torch.distributed" in graph["sirtaki_backend"], "imports inside functions count"
    assert " -> ".join(find_cycle(graph)) == ""


def test_folders_are_not_too_full() -> None:
    folders = {path.parent for path in PYTHON.rglob("*.py")}
    assert [str(f) for f in folders if len(list(f.glob("*.py"))) > MAX_FILES] == []


def test_a_cycle_is_found(tmp_path: Path) -> None:
    files = {
        "p/__init__.py": "",
        "p/a.py": "from p import b\n",
        "p/b.py": "def f():\n    from .q.c import x\n",
        "p/q/__init__.py": "",
        "p/q/c.py": "import importlib\nx = importlib.import_module('p.a')\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert find_cycle(import_graph((tmp_path,))) == ["p.a", "p.b", "p.q.c", "p.a"]
    (tmp_path / "p/q/c.py").write_text("from p import missing\n")
    assert find_cycle(import_graph((tmp_path,))) == []
