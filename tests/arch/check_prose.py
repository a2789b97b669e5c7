"""Checks the English of comments, docstrings and pages.

- No sentence of a doc comment begins with a fragment word ("What", "Of", "As", ...); "As long as ..., the ..." and
  "To close ..., call ..." are sentences.
- "what" stands at most twice in 1,000 words of a folder's comments and four times in 1,000 words of a page; once is
  always allowed.
- No possessive of a type name: "the end of a Stream", or the plain name of the member.

A comment `lint: allow(prose) reason` excuses its own line and the next.

usage: check_prose.py [--stats] [path ...]; paths are files or folders, by default the whole tree.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from prose import Block, blocks, plain
from source_tree import CPP, ROOTS, SKIPPED_FOLDERS, WAIVER, Problem, Source, report

FOLDERS = (*ROOTS, "scripts", "cmake", "docs")
ROOT_FILES = ("*.md", "CMakeLists.txt", "Makefile")
SUFFIXES = {*CPP, ".py", ".md", ".cmake", ".sh"}
RATE_COMMENTS, RATE_PAGES = 2, 4  # of "what", in 1,000 words

WHAT = re.compile(r"(?<!\")\bwhat\b(?![(\"])", re.IGNORECASE)
FRAGMENT = re.compile(
    r"(?:what|whether|of|as|by|none|to|who|whoever|whom|whose|which|how)\b(?![(_-])"
    r"|(?:after|at|before|beside|besides|between|for|from|in|into|on|over|than|with|without)"
    r" (?:what|who|whoever|whom|which|whose)\b",
    re.IGNORECASE,
)
ALWAYS = re.compile(r"(?:what|whether|none|who|whoever|whom|whose|which|how)\b|\w+ (?:what|who)", re.IGNORECASE)
SUBJECT = (
    r"(?:an?|the|this|these|each|every|all|no|any|its|their|it|they|you|both|there|one|two|either|neither|some|another)"
)
IMPERATIVE = (
    r"(?:add|build|call|change|choose|close|compile|copy|create|do|draw|edit|give|install|keep|leave|let|make|never|open"
    r"|pass|prefer|put|read|return|run|see|set|start|take|try|use|wait|write)"
)
MAIN_CLAUSE = re.compile(rf"[^:;]*,\s(?:{SUBJECT}|{IMPERATIVE})\s[^\s:;,]+\s[^\s:;,]+", re.IGNORECASE)
WHOLE_SENTENCE = re.compile(r"(?:by default\b|none (?:of|is|are|has|have)\b)", re.IGNORECASE)
TYPE = re.compile(r"^[ \t]*(?:enum[ \t]+)?(?:class|struct|enum|union)[ \t]+(?:\[\[\w+\]\][ \t]*)?(\w+)", re.MULTILINE)
POSSESSIVE = re.compile(r"\b([A-Z]\w*[a-z]\w*)`?(?:'s\b|'(?=\s|[,.;:)]))")
#: Types that are also names of products and people, or plain words where a sentence begins.
PROPER = {"Horovod", "Keras", "Python", "Torch", "Gloo", "Linux", "Adam", "Slurm"}


@dataclass
class Group:
    """Counts of one folder's comments, or of one page."""

    words: int = 0
    what: list[tuple[str, int]] = field(default_factory=list)
    doc_sentences: int = 0
    fragments: int = 0

    def allowed(self, page: bool) -> int:
        """Returns how often "what" may stand here."""
        return max(1, self.words * (RATE_PAGES if page else RATE_COMMENTS) // 1000)


def is_fragment(sentence: str) -> bool:
    """Tells a sentence without subject and verb of its own by its first words."""
    text = sentence.lstrip("(")
    if FRAGMENT.match(text) is None or WHOLE_SENTENCE.match(text):
        return False
    if ALWAYS.match(text):
        return not text.endswith("?")
    return MAIN_CLAUSE.match(text) is None


def prose_files(root: Path) -> Iterator[Path]:
    """Yields every file with prose."""
    for pattern in ROOT_FILES:
        yield from sorted(root.glob(pattern))
    for top in FOLDERS:
        for path in sorted((root / top).rglob("*")):
            if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts) and (
                path.suffix in SUFFIXES or path.name in ROOT_FILES
            ):
                yield path


def type_names(sources: Iterable[Source]) -> frozenset[str]:
    """Returns the names of all types that the tree defines."""
    code = (s for s in sources if s.is_cpp or s.path.endswith(".py"))
    names = (match[1] for source in code for match in TYPE.finditer(source.text))
    return frozenset(name for name in names if name[:1].isupper()) - PROPER


def is_selected(path: str, selected: tuple[str, ...]) -> bool:
    """Returns whether a file is one of `selected`, or below one; "x/*" holds the files directly in folder x."""
    folder = path.rpartition("/")[0]
    return any(
        path == name or path.startswith(name.rstrip("/") + "/") or (name.endswith("/*") and folder == name[:-2])
        for name in selected
    )


class Checker:
    """Reads files one by one; problems of single lines are found at once, those of folders at the end."""

    def __init__(self, types: frozenset[str]) -> None:
        self.types = types
        self.problems: list[Problem] = []
        self.groups: dict[str, Group] = defaultdict(Group)

    def read(self, source: Source) -> None:
        """Checks one file."""
        page = source.path.endswith(".md")
        group = self.groups[source.path if page else source.path.rpartition("/")[0] or source.path]
        waived = {line for rule, line in source.waivers if rule == "prose"}
        for block in blocks(source.path, source.text):
            group.words += block.words()
            self._lines(source.path, block, group, waived)
            if block.doc:
                self._sentences(source.path, block, group, waived)

    def _lines(self, path: str, block: Block, group: Group, waived: set[int]) -> None:
        for number, text in block.lines:
            if number in waived or WAIVER.search(text):
                continue
            group.what += [(path, number)] * len(WHAT.findall(plain(text)))
            for match in POSSESSIVE.finditer(text):
                if match[1] in self.types:
                    self.problems.append(Problem(path, number, "prose", f'"{match[0]}": no possessive of a type'))

    def _sentences(self, path: str, block: Block, group: Group, waived: set[int]) -> None:
        for number, sentence in block.sentences():
            group.doc_sentences += 1
            if number not in waived and is_fragment(plain(sentence)):
                group.fragments += 1
                begin = " ".join(sentence.split()[:5])
                text = f'"{begin} ...": begin with a verb (Returns, Calls, Requires) or a noun'
                self.problems.append(Problem(path, number, "prose", text))

    def result(self) -> list[Problem]:
        """Returns all problems in order of files and lines."""
        found = list(self.problems)
        for name, group in self.groups.items():
            allowed = group.allowed(name.endswith(".md"))
            if len(group.what) > allowed:
                text = f'"what" {len(group.what)} times in {group.words} words of {name}, {allowed} allowed: say a noun'
                found += [Problem(path, line, "prose", text) for path, line in sorted(set(group.what))]
        return sorted(found, key=lambda p: (p.path, p.line, p.text))


def checked(root: Path, selected: tuple[str, ...] = ()) -> Checker:
    """Returns a checker that has read the selected files and folders; empty: all."""
    sources = [Source(root, path) for path in prose_files(root)]
    checker = Checker(type_names(sources))
    for source in sources:
        if not selected or is_selected(source.path, selected):
            checker.read(source)
    return checker


def prose_problems(root: Path, selected: tuple[str, ...] = ()) -> list[Problem]:
    """Returns every problem of the selected files and folders; empty: of all."""
    return checked(root, selected).result()


def print_stats(groups: dict[str, Group]) -> None:
    """Prints a row for each folder and page, and the sums."""
    print(f"{'words':>7} {'what/1000':>9} {'doc sentences':>13} {'fragments':>9}")
    comments, pages = Group(), Group()
    for name, group in sorted(groups.items()):
        total = pages if name.endswith(".md") else comments
        total.words += group.words
        total.what += group.what
        total.doc_sentences += group.doc_sentences
        total.fragments += group.fragments
    for name, group in [*sorted(groups.items()), ("all comments", comments), ("all pages", pages)]:
        rate = 1000 * len(group.what) / max(1, group.words)
        share = f"{100 * group.fragments / max(1, group.doc_sentences):8.1f}%" if group.doc_sentences else " " * 9
        print(f"{group.words:7} {rate:9.1f} {group.doc_sentences:13} {share} {name}")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="checks the English of comments, docstrings and pages")
    parser.add_argument("paths", nargs="*", help="folders and files to read; default: all")
    parser.add_argument("--stats", action="store_true", help="print counts of every folder and page as well")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    args = parser.parse_args()
    checker = checked(args.root.resolve(), tuple(path.rstrip("/") for path in args.paths))
    clean = report(checker.result())
    if args.stats:
        print_stats(checker.groups)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
