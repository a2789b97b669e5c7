"""Checks that the README.md of each folder names every source file of the folder, one line a file, and no other file.

A table row is `` | `name` | purpose | ``. `status` stands for status.h, status.cc and status.py, and for further parts
of a .cc file, such as status_text.cc; `a.inc` stands for itself; `x/` for all files of a folder below, which then needs
no README.md of its own. No folder has more than 25 source files. Tests and benchmarks are described as folders, in
ARCHITECTURE.md.

usage: check_map.py [--add] [root]; --add writes missing rows, with the first sentence of the file as purpose, and drops
rows of files that no longer exist.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from source_tree import Problem, Source, Tree, report

PAGE = "ARCHITECTURE.md"
MAX_LINES = 250
MAX_FILES = 25
UNMAPPED = ("tests/", "benchmarks/")
ROW = re.compile(r"^\| (`[^|]*`) \|")
NAME = re.compile(r"`([\w./-]+)`")
HEAD = "| file | purpose |\n|---|---|\n"
LANGUAGES = (".h", ".cc", ".c", ".py", ".cu", ".cuh")


class Readme:
    """The rows of the README.md of one folder: name -> line."""

    def __init__(self, root: Path, folder: str) -> None:
        self.path = f"{folder}/README.md"
        self.text = (root / self.path).read_text() if (root / self.path).exists() else ""
        self.rows: dict[str, int] = {}
        self.problems: list[Problem] = []
        for number, line in enumerate(self.text.splitlines(), 1):
            match = ROW.match(line)
            names = NAME.findall(match[1]) if match else []
            if len(names) > 1:
                self.problems.append(Problem(self.path, number, "map", "more than one file in a row"))
            for name in names:
                if name in self.rows:
                    self.problems.append(Problem(self.path, number, "map", f"`{name}` has two rows"))
                self.rows[name] = number


def unit_of(name: str) -> str:
    """Returns the name of a file in its folder's table."""
    stem, dot, suffix = name.rpartition(".")
    return stem if dot + suffix in LANGUAGES else name


def row_among(name: str, rows: Collection[str]) -> str | None:
    """Returns the row for a file of the folder itself: its own, or that of which a .cc is a further part."""
    unit = unit_of(name)
    if unit in rows:
        return unit
    return next((row for row in rows if name.endswith(".cc") and unit.startswith(row + "_")), None)


def row_of(readme: Readme, relative: str) -> str | None:
    """Returns the row that covers a file at `relative` below the folder of `readme`, if there is one."""
    folder, _, name = relative.rpartition("/")
    while folder:
        if folder + "/" in readme.rows:
            return folder + "/"
        folder = folder.rpartition("/")[0]
    return None if "/" in relative else row_among(name, readme.rows)


def mapped(tree: Tree) -> Iterator[Source]:
    """Yields the files that need a row."""
    for source in tree.sources.values():
        if not source.path.startswith(UNMAPPED) and not source.path.endswith("/__init__.py"):
            yield source


def readmes_of(tree: Tree) -> dict[str, Readme]:
    """Returns the README.md of every folder that holds a mapped file, or lies above one."""
    folders = {str(parent) for source in mapped(tree) for parent in Path(source.path).parents if str(parent) != "."}
    return {folder: Readme(tree.root, folder) for folder in sorted(folders)}


def covering_row(source: Source, readmes: dict[str, Readme]) -> tuple[str, str] | None:
    """Returns folder and row that cover a file: its own folder, or a folder above with a row for its folder."""
    for parent in Path(source.path).parents:
        folder = str(parent)
        if folder in readmes:
            row = row_of(readmes[folder], source.path[len(folder) + 1 :])
            if row is not None:
                return folder, row
    return None


def map_problems(root: Path) -> Iterator[Problem]:
    """Yields the differences between the tables and the tree."""
    if (root / PAGE).read_text().count("\n") > MAX_LINES:
        yield Problem(PAGE, MAX_LINES, "map", f"longer than {MAX_LINES} lines")
    tree = Tree(root)
    counts = Counter(str(Path(path).parent) for path in tree.sources if not path.endswith("/__init__.py"))
    for folder, count in counts.items():
        if count > MAX_FILES:
            yield Problem(folder, 1, "map", f"{count} source files; {MAX_FILES} are allowed: a folder per noun")
    readmes = readmes_of(tree)
    used: set[tuple[str, str]] = set()
    for source in mapped(tree):
        covered = covering_row(source, readmes)
        if covered is None:
            yield Problem(source.path, 1, "map", f"`{unit_of(Path(source.path).name)}` has no row in a README.md")
        else:
            used.add(covered)
    for folder, readme in readmes.items():
        yield from readme.problems
        for name, line in readme.rows.items():
            if (folder, name) not in used and not (root / folder / name).exists():
                yield Problem(readme.path, line, "map", f"`{name}` does not exist in {folder}")


def first_sentence(source: Source) -> str:
    """Returns the first sentence of a file's opening comment or docstring, without the name of its class."""
    if source.is_cpp:
        lines = []
        for line in source.text.splitlines():
            if not line.startswith("//"):
                break
            lines.append(line[2:].strip())
        text = " ".join(lines)
    else:
        text = " ".join((ast.get_docstring(ast.parse(source.text)) or "").split())
    text = re.sub(r"^\w+( and \w+)?: ", "", text)
    sentence = re.split(r"(?<=[^.])\.(?:\s|$)", text)[0].replace("|", "\\|")
    return sentence[:1].upper() + sentence[1:]


def add_rows(root: Path) -> None:
    """Writes missing rows, and drops rows of files that no longer exist."""
    tree = Tree(root)
    readmes = readmes_of(tree)
    for folder, readme in readmes.items():
        wanted: dict[str, str] = {}
        own = [source for source in mapped(tree) if str(Path(source.path).parent) == folder]
        for source in sorted(own, key=lambda s: (not s.is_header, len(s.path), s.path)):
            name = Path(source.path).name
            if covering_row(source, readmes) is None and row_among(name, wanted) is None:
                wanted[unit_of(name)] = first_sentence(source)
        gone = {name for name in readme.rows if not name.endswith("/") and not exists(tree, folder, name)}
        if not wanted and not gone:
            continue
        lines = (readme.text or f"# {folder}\n\n{HEAD}").splitlines()
        kept = [line for n, line in enumerate(lines, 1) if n not in {readme.rows[name] for name in gone}]
        last = max((n for n, line in enumerate(kept) if line.startswith("|")), default=len(kept) - 1)
        rows = [f"| `{name}` | {purpose} |" for name, purpose in sorted(wanted.items())]
        kept[last + 1 : last + 1] = rows
        (root / readme.path).write_text("\n".join(kept) + "\n")


def exists(tree: Tree, folder: str, name: str) -> bool:
    """Returns true if the file of a row exists."""
    return (tree.root / folder / name).exists() or any(
        f"{folder}/{name}{suffix}" in tree.sources for suffix in LANGUAGES
    )


def main() -> int:
    """Command line."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--add"]
    root = Path(arguments[0]).resolve() if arguments else Path(__file__).resolve().parents[2]
    if "--add" in sys.argv[1:]:
        add_rows(root)
    return 0 if report(sorted(map_problems(root), key=str)) else 1


if __name__ == "__main__":
    sys.exit(main())
