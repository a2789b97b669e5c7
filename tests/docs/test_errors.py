"""The pages on errors name the kinds of the code, and messages that the code has."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Programs beside this one say these.
FOREIGN = ("Permission denied", "Host key verification failed")
PAGES = ("troubleshooting", "launcher", "pytorch_ddp", "pytorch_distributed", "fsdp")
SECTION = re.compile(r"^## Error(?:s| messages)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
VARIABLE = re.compile(r"…|\brank N\b|\(the path of `sirtakirun`\)|\w+ \[2\]")
SHORTEST = 4  # shorter parts of a message are in any text


@cache
def texts_of_the_code() -> str:
    """Returns the sources of the product, with adjacent string literals joined."""
    folders = ("adapters", "launcher", "runtime", "scheduler", "compression")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))]
    text = "\n".join(path.read_text() for path in files if path.suffix in {".cc", ".h", ".py", ".inc"})
    return re.sub(r'"\s*\n?\s*f?"', "", text)


def rows_of(table: str) -> list[list[str]]:
    """Returns the cells of the rows below the head of each table in a text."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines() if line[:1] == "|"]
    return [row for row in rows if not row[0].startswith("---") and row[0].lower() not in ("message", "class")]


def missing_parts(message: str, code: str) -> list[str]:
    """Returns the fixed parts of a message that the code does not have."""
    parts = [part.strip(" ,;:`") for part in VARIABLE.split(message)]
    return [part for part in parts if len(part) >= SHORTEST and part not in code and part not in FOREIGN]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_has_the_messages_of_the_tables(page: str) -> None:
    section = SECTION.search((ROOT / f"docs/{page}.md").read_text())
    assert section is not None
    rows = rows_of(section[1])
    assert len(rows) > 3
    assert {row[0]: parts for row in rows if (parts := missing_parts(row[0], texts_of_the_code()))} == {}


def test_a_message_that_the_code_lacks_is_named() -> None:
    assert missing_parts("… is lost on rank N, call …", 'f("tensor is lost on rank")') == ["call"]


def test_the_table_has_every_kind_of_error() -> None:
    rows = rows_of((ROOT / "docs/errors.md").read_text().partition("\n## ")[0])
    listed = {re.findall(r"`(\w+)`", row[1])[0]: (re.findall(r"`(\w+)`", row[0])[0], row[2]) for row in rows}
    header = (ROOT / "adapters/c/sirtaki.h").read_text().partition("} sirtaki_status;")[0]
    numbers = {
        name: int(number) for name, number in re.findall(r"^  (SIRTAKI_\w+) = (\d+),? +/\*", header, re.MULTILINE)
    }
    python = (ROOT / "adapters/python/sirtaki/errors.py").read_text()
    classes = {int(number): name for number, name in re.findall(r"^    (\d+): (\w+),", python, re.MULTILINE)}
    classes[int(re.findall(r"^TIMEOUT = (\d+)", python, re.MULTILINE)[0])] = "DeadlineError"
    names = re.findall(r'return "([a-z ]+)";', (ROOT / "runtime/base/status.cc").read_text())
    assert listed == {name: (classes.get(number, "InternalError"), names[number]) for name, number in numbers.items()}
