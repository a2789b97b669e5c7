"""ARCHITECTURE.md names every source file of the product, and names no file that does not exist.

A section `### folder` maps that folder. Its words in backquotes are files: `status` stands for status.h, status.cc or
status.py, `a.inc` for itself, `x/y` for files in a folder below, `x/` for all of them. Tests and benchmarks are mapped
as folders.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from source_tree import Problem, Source, Tree

PAGE = "ARCHITECTURE.md"
MAX_LINES = 250
UNMAPPED = ("tests/", "benchmarks/")
SECTION = re.compile(r"^### ([\w/]+)", re.MULTILINE)
ROW_NAME = re.compile(r"`([\w./-]+)`")


def units_of(text: str) -> dict[str, dict[str, int]]:
    """Folder -> name in the first column of its table -> line."""
    units: dict[str, dict[str, int]] = {}
    folder = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            match = SECTION.match(line)
            folder = match[1] if match else None
        elif folder and line.startswith("| `"):
            for name in ROW_NAME.findall(line.split("|")[1]):
                units.setdefault(folder, {})[name] = number
    return units


def unit_of(path: str, folder: str) -> str:
    """Name of a file inside its folder's section, without the suffix of its language."""
    return re.sub(r"\.(h|cc|c|py|cu|cuh)$", "", path[len(folder) + 1 :])


def folder_of(path: str, folders: list[str]) -> str | None:
    """The longest mapped folder that holds `path`."""
    return max((f for f in folders if path.startswith(f + "/")), key=len, default=None)


def map_problems(root: Path) -> Iterator[Problem]:
    """Differences between the page and the tree."""
    text = (root / PAGE).read_text()
    if text.count("\n") > MAX_LINES:
        yield Problem(PAGE, text.count("\n"), "map", f"longer than {MAX_LINES} lines")
    units = units_of(text)
    present: dict[str, set[str]] = {folder: set() for folder in units}
    for source in Tree(root).sources.values():
        if source.path.startswith(UNMAPPED) or source.path.endswith("/__init__.py"):
            continue
        folder = folder_of(source.path, list(units))
        if folder is None:
            yield Problem(source.path, 1, "map", f"its folder has no section in {PAGE}")
            continue
        unit = unit_of(source.path, folder)
        present[folder].add(unit)
        if unit not in units[folder] and not is_part(source, unit, units[folder]):
            yield Problem(source.path, 1, "map", f"`{unit}` is not in the section {folder} of {PAGE}")
    for folder, names in units.items():
        for name, line in names.items():
            if name not in present[folder] and not (root / folder / name).exists():
                yield Problem(PAGE, line, "map", f"`{name}` does not exist in {folder}")


def is_part(source: Source, unit: str, mapped: dict[str, int]) -> bool:
    """Whether a .cc is a further part of a mapped unit, channel_recv.cc of channel; or any file in a mapped folder."""
    if any(name.endswith("/") and unit.startswith(name) for name in mapped):
        return True
    return source.path.endswith(".cc") and any(unit.startswith(name + "_") for name in mapped)


def main() -> int:
    """Command line."""
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    problems = sorted(map_problems(root), key=str)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
