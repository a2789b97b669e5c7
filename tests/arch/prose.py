"""The prose of a file: comments of C++, Python and build files, docstrings, Markdown without its code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from source_tree import CPP, TOKEN

HASH_FILES = (".cmake", ".sh")
HASH_NAMES = ("CMakeLists.txt", "Makefile")
#: Python literals, so that a "#" inside one is no comment.
PYTHON_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""'
    r"|'''(?:\\.|[^\\])*?'''"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'"
    r"|#[^\n]*",
    re.DOTALL,
)
DIRECTIVE = re.compile(
    r"\s*(lint: allow\(.*|NOLINT.*|noqa\b.*|type: ignore.*|clang-format (on|off).*|pragma:.*|!.*|namespace\b[\w: ]*)"
)
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$")
ARGUMENT = re.compile(r"\s*[-*]?\s*`?\**\w+`?(?: \([^)]*\))?: ")
ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
BACKTICKS = re.compile(r"(`+)[^`].*?\1", re.DOTALL)
LINK = re.compile(r"\]\([^)\s]*(?: \"[^\"]*\")?\)")
END = re.compile(r"(?<!e\.g)(?<!i\.e)[.!?][)\"']*(?=\s+(?:[A-Z(\"`]|$))")
WORD = re.compile(r"[A-Za-z][\w'-]*")


@dataclass
class Block:
    """Consecutive lines of prose. `doc`: it documents a file, a declaration or a Python object."""

    lines: list[tuple[int, str]]
    doc: bool

    def words(self) -> int:
        """Returns the number of words; inline code counts as nothing."""
        return sum(len(WORD.findall(plain(text))) for _, text in self.lines)

    def sentences(self) -> Iterator[tuple[int, str]]:
        """Yields line and text of each sentence; an empty line, an item of a list and an argument begin a new one."""
        parts: list[list[tuple[int, str]]] = [[]]
        for number, text in self.lines:
            begin = ITEM.match(text) or ARGUMENT.match(text)
            if begin or not text.strip():
                parts.append([])
            if text.strip():
                parts[-1].append((number, text[begin.end() :] if begin else text))
        for part in parts:
            yield from split(part)


def plain(text: str) -> str:
    """Returns `text` without inline code and targets of links."""
    return LINK.sub("]", BACKTICKS.sub("` `", text))


def split(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yields line and text of each sentence of a paragraph."""
    text = "\n".join(line for _, line in lines)
    start = 0
    for end in [*(match.end() for match in END.finditer(text)), len(text)]:
        sentence = text[start:end]
        if sentence.strip():
            first = start + len(sentence) - len(sentence.lstrip())
            yield lines[text.count("\n", 0, first)][0], " ".join(sentence.split())
        start = end


@dataclass
class Comment:
    """One line of a comment: where it begins, and whether nothing but the comment stands on the line."""

    line: int
    column: int
    alone: bool
    doc: bool
    text: str


def joined(comments: Iterable[Comment]) -> Iterator[Block]:
    """Yields comments as blocks: the next line continues one if it begins in the same column."""
    block: Block | None = None
    last: Comment | None = None
    for comment in comments:
        if DIRECTIVE.fullmatch(comment.text):
            continue
        follows = last is not None and (comment.line, comment.column) == (last.line + 1, last.column)
        if block is not None and follows and comment.alone and block.doc == comment.doc:
            block.lines.append((comment.line, comment.text))
        else:
            if block is not None:
                yield block
            block = Block([(comment.line, comment.text)], comment.doc)
        last = comment
    if block is not None:
        yield block


def place(text: str, offset: int) -> tuple[int, int, bool]:
    """Returns line and column of an offset, and whether only blanks precede it on its line."""
    begin = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - begin, not text[begin:offset].strip()


def cpp_blocks(text: str) -> Iterator[Block]:
    """Yields the comments of a C, C++ or CUDA file; those in function bodies are no documentation."""
    comments: list[Comment] = []
    scopes: list[bool] = []
    since = 0  # where the statement begins whose scope a brace would open
    for match in re.finditer(rf"{TOKEN.pattern}|[{{}};]", text, re.DOTALL):
        token = match[0]
        if token == "{":
            head = re.sub(r"//[^\n]*|/\*.*?\*/|<[^<>]*>", " ", text[since : match.start()], flags=re.DOTALL)
            scopes.append(SCOPE.search(head) is not None)
        elif token == "}" and scopes:
            scopes.pop()
        if token in "{};":
            since = match.end()
        elif token.startswith(("//", "/*")):
            number, column, alone = place(text, match.start())
            for offset, line in enumerate(token.splitlines()):
                prose = re.sub(r"^\s*(//[/!]?<?|/\*+|\*/|\*)\s?|\s*\*/$", "", line)
                comments.append(Comment(number + offset, column, alone or offset > 0, all(scopes), prose))
    yield from joined(comments)


def python_blocks(text: str) -> Iterator[Block]:
    """Yields comments and docstrings of a Python file; `#:` begins the documentation of a variable."""
    yield from joined(
        Comment(*place(text, match.start()), match[0].startswith("#:"), re.sub(r"^#:?\s?", "", match[0]))
        for match in PYTHON_TOKEN.finditer(text)
        if match[0].startswith("#")
    )
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return  # reported by ruff
    lines = text.splitlines()
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            span = range(first.lineno, (first.end_lineno or first.lineno) + 1)
            yield Block([(n, re.sub(r'^\s*[rR]?"""|"""$', "", lines[n - 1])) for n in span], True)


def hash_blocks(text: str) -> Iterator[Block]:
    """Yields comments of CMake, make and shell files that stand alone on their lines."""
    found = [(n, re.match(r"(\s*)#\s?(.*)", line)) for n, line in enumerate(text.splitlines(), 1)]
    yield from joined(Comment(n, len(match[1]), True, False, match[2]) for n, match in found if match)


def markdown_blocks(text: str) -> Iterator[Block]:
    """Yields the prose of a page: no code blocks, no HTML comments, no rules of tables."""
    text = re.sub(r"<!--.*?-->", lambda match: re.sub(r"[^\n]", "", match[0]), text, flags=re.DOTALL)
    fence = ""
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence and not re.fullmatch(r"[\s|:-]+", line):
            lines.append((number, re.sub(r"^#+\s|\|", " ", line)))
    if lines:
        yield Block(lines, False)


def blocks(path: str, text: str) -> list[Block]:
    """Returns the prose of a file by its kind; empty for other kinds."""
    name, suffix = Path(path).name, Path(path).suffix
    if suffix in CPP:
        return list(cpp_blocks(text))
    if suffix == ".py":
        return list(python_blocks(text))
    if suffix == ".md":
        return list(markdown_blocks(text))
    return list(hash_blocks(text)) if suffix in HASH_FILES or name in HASH_NAMES else []
