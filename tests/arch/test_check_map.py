"""The map checker finds files without a row and rows without a file."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from check_map import MAX_LINES, map_problems

PAGE = "# Map\n\n### runtime/net\n| file | holds |\n|---|---|\n| `link` `sub/x` | links, see `nothing` |\n"


def problems_of(root: Path, page: str, *files: str) -> list[tuple[str, int]]:
    (root / "ARCHITECTURE.md").write_text(page)
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("// x\n")
    return sorted((p.path, p.line) for p in map_problems(root))


def test_complete_map_is_accepted(tmp_path: Path) -> None:
    files = ("runtime/net/link.h", "runtime/net/link.cc", "runtime/net/link_recv.cc", "runtime/net/sub/x.cc")
    assert problems_of(tmp_path, PAGE, *files, "tests/unit/x_test.cc") == []


def test_file_without_a_row_is_found(tmp_path: Path) -> None:
    files = ("runtime/net/link.h", "runtime/net/sub/x.h", "runtime/net/other.h", "runtime/net/link_extra.h")
    assert problems_of(tmp_path, PAGE, *files) == [("runtime/net/link_extra.h", 1), ("runtime/net/other.h", 1)]


def test_row_of_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    page = PAGE.replace("`sub/x`", "`sub/`")
    files = ("runtime/net/link.h", "runtime/net/sub/x.h", "runtime/net/sub/y.cc")
    assert problems_of(tmp_path, page, *files) == []
    assert problems_of(tmp_path, page.replace("sub/", "other/"), *files) == [
        ("ARCHITECTURE.md", 6),
        ("runtime/net/sub/x.h", 1),
        ("runtime/net/sub/y.cc", 1),
    ]


def test_row_without_a_file_is_found(tmp_path: Path) -> None:
    assert problems_of(tmp_path, PAGE, "runtime/net/link.h") == [("ARCHITECTURE.md", 6)]


def test_folder_without_a_section_is_found(tmp_path: Path) -> None:
    files = ("runtime/net/link.h", "runtime/net/sub/x.h", "launcher/main.cc")
    assert problems_of(tmp_path, PAGE, *files) == [("launcher/main.cc", 1)]


def test_long_page_is_found(tmp_path: Path) -> None:
    page = PAGE + "\n" * MAX_LINES
    assert problems_of(tmp_path, page, "runtime/net/link.h", "runtime/net/sub/x.h") == [
        ("ARCHITECTURE.md", page.count("\n"))
    ]
