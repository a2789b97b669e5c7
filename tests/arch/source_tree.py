"""Reads the source tree for the architecture checks: files, code without comments, include lines, waivers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOTS = (
    "runtime",
    "kernels",
    "compression",
    "scheduler",
    "adapters",
    "launcher",
    "tests",
    "examples",
    "benchmarks",
)
CPP = {".h", ".cc", ".c", ".cu", ".cuh", ".inc"}
SKIPPED_FOLDERS = {"build", "__pycache__", "results"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
WAIVER = re.compile(r"(?://|#|<!--) lint: allow\((\w+)\) \S+")
# Matches a raw string, a string, a character, a line comment, a block comment.
TOKEN = re.compile(
    r'R"(?P<raw>[^()\s\\]{0,16})\(.*?\)(?P=raw)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"
    r"|//[^\n]*"
    r"|/\*.*?\*/",
    re.DOTALL,
)


@dataclass(frozen=True)
class Include:
    """One include line: `name` as written, `system` for angle brackets."""

    name: str
    system: bool
    line: int


@dataclass(frozen=True)
class Problem:
    """A broken rule, with its place."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def report(problems: Iterable[Problem]) -> bool:
    """Prints each problem on a line. Returns whether there was none."""
    found = list(problems)
    for problem in found:
        print(problem)
    return not found


class Source:
    """One file, read once."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path.relative_to(root).as_posix()
        self.text = path.read_text(encoding="utf-8", errors="replace")

    @property
    def is_header(self) -> bool:
        """Returns true for headers of C, C++ or CUDA."""
        return self.path.endswith((".h", ".cuh"))

    @property
    def is_cpp(self) -> bool:
        """Returns true for C, C++ and CUDA files."""
        return Path(self.path).suffix in CPP

    @cached_property
    def code(self) -> str:
        """Returns the text with comments and literals blanked; every line keeps its number."""
        if not self.is_cpp:
            return re.sub(r"#[^\n]*", "", self.text)

        def blank(match: re.Match[str]) -> str:
            return re.sub(r"[^\n]", " ", match[0])

        return TOKEN.sub(blank, self.text)

    @cached_property
    def includes(self) -> list[Include]:
        """Returns the include lines outside comments."""
        found = []
        for match in INCLUDE.finditer(self.text):
            start = self.text.index("#", match.start())
            if self.code[start] != "#":
                continue
            found.append(Include(match[2], match[1] == "<", self.text.count("\n", 0, start) + 1))
        return found

    @cached_property
    def waivers(self) -> set[tuple[str, int]]:
        """Returns (rule, line) pairs excused by comments `lint: allow(rule) reason`: their own line and the next."""
        found = set()
        for number, line in enumerate(self.text.splitlines(), 1):
            for match in WAIVER.finditer(line):
                found |= {(match[1], number), (match[1], number + 1)}
        return found

    def matches(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
        """Yields (line, matched text) of each hit in the code."""
        for match in pattern.finditer(self.code):
            yield self.code.count("\n", 0, match.start()) + 1, " ".join(match[0].split())


class Tree:
    """All sources below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sources: dict[str, Source] = {}
        for top in ROOTS:
            for path in sorted((root / top).rglob("*")):
                parts = path.relative_to(root).parts
                if not path.is_file() or SKIPPED_FOLDERS.intersection(parts):
                    continue
                if path.suffix in CPP or path.suffix == ".py":
                    source = Source(root, path)
                    self.sources[source.path] = source

    def cpp(self) -> Iterator[Source]:
        """Yields C, C++ and CUDA files."""
        return (s for s in self.sources.values() if s.is_cpp)

    def python(self) -> Iterator[Source]:
        """Yields Python files."""
        return (s for s in self.sources.values() if not s.is_cpp)

    def reached(self, source: Source) -> set[str]:
        """Returns the system headers that `source` includes, directly or through project headers."""
        seen, found, todo = {source.path}, set(), [source]
        while todo:
            for include in todo.pop().includes:
                if include.system:
                    found.add(include.name)
                elif include.name in self.sources and include.name not in seen:
                    seen.add(include.name)
                    todo.append(self.sources[include.name])
        return found
