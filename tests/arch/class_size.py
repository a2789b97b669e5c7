"""Counts the data members and lines of each class and struct of the product.

A class with many members has several jobs. Parsing is approximate: bodies of functions and nested classes are skipped,
and a statement without parentheses that ends in a name is a member.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from source_tree import Source

MAX_MEMBERS = 25
MAX_LINES = 400
HEAD = re.compile(r"\b(?:class|struct)\s+(?:\[\[\w+\]\]\s*)?(\w[\w:]*)\s*(?:final\s*)?(?::[^;{}]*)?\{")
QUALIFIERS = r"(?:mutable\s+|const\s+|volatile\s+|alignas\([^)]*\)\s*)*"
MEMBER = re.compile(QUALIFIERS + r"[\w:]+(?:\s*[*&]|\s+const)*\s+[*&]?\w+(?:\[[^\]]*\])*\s*(?:=.*|\{\})?", re.DOTALL)
OTHER = ("using ", "friend ", "static ", "typedef ", "enum ", "class ", "struct ", "template", "explicit ", "virtual ")


class ClassSize(NamedTuple):
    """One class: its name, the line of its head, and its size."""

    name: str
    line: int
    members: int
    lines: int


def end_of_body(code: str, start: int) -> int:
    """Returns the position of the brace that closes the one at `start`."""
    depth = 0
    for position in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[position], 0)
        if depth == 0:
            return position
    return len(code)


def outer_level(body: str) -> str:
    """Returns `body` with the contents of all braces left out."""
    kept, depth = [], 0
    for character in body:
        depth -= character == "}"
        if depth == 0:
            kept.append(character)
        depth += character == "{"
    return "".join(kept)


def without_templates(text: str) -> str:
    """Returns `text` without angle brackets and their contents."""
    while True:
        shorter = re.sub(r"<[^<>]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def member_count(body: str) -> int:
    """Returns the number of data members in the body of a class."""
    text = re.sub(r"\b(public|private|protected)\s*:", "", outer_level(body))
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\)\s*(?:const|noexcept|override|final|\s)*(?::[^;{}]*)?\{\}", ");", text)
    statements = (without_templates(" ".join(statement.split())) for statement in text.split(";"))
    return sum(
        not statement.startswith(OTHER) and "(" not in statement.split("=")[0] and bool(MEMBER.fullmatch(statement))
        for statement in statements
    )


def class_sizes(source: Source) -> Iterator[ClassSize]:
    """Yields the size of each class and struct of a C++ file."""
    code = source.code
    for match in HEAD.finditer(code):
        if re.search(r"\benum\s+$", code[: match.start()]):
            continue
        body = code[match.end() : end_of_body(code, match.end() - 1)]
        line = code.count("\n", 0, match.start()) + 1
        yield ClassSize(match[1], line, member_count(body), body.count("\n"))
