"""The map checker finds files without a row and rows without a file."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from check_map import MAX_LINES, add_rows, map_problems

PAGE = "# runtime/net\n\n| file | purpose |\n|---|---|\n| `link` | links, see `nothing` |\n| `sub/` | more |\n"


def problems_of(root: Path, page: str, *files: str) -> list[tuple[str, int]]:
    (root / "ARCHITECTURE.md").write_text("# Architecture\n")
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("// Thing: a purpose. More.\n")
    (root / "runtime/net/README.md").write_text(page)
    return sorted((p.path, p.line) for p in map_problems(root))


def test_complete_map_is_accepted(tmp_path: Path) -> None:
    files = ("runtime/net/link.h", "runtime/net/link.cc", "runtime/net/link_recv.cc", "runtime/net/sub/x.cc")
    assert problems_of(tmp_path, PAGE, *files, "tests/unit/x_test.cc") == []


def test_file_without_a_row_is_found(tmp_path: Path) -> None:
    files = ("runtime/net/link.h", "runtime/net/sub/x.h", "runtime/net/other.h", "runtime/net/link_extra.h")
    assert problems_of(tmp_path, PAGE, *files) == [("runtime/net/link_extra.h", 1), ("runtime/net/other.h", 1)]


def test_folder_below_needs_a_row_or_a_readme(tmp_path: Path) -> None:
    page = PAGE.replace("| `sub/` | more |\n", "")
    files = ("runtime/net/link.h", "runtime/net/sub/x.h", "runtime/net/sub/y.cc")
    assert problems_of(tmp_path, page, *files) == [("runtime/net/sub/x.h", 1), ("runtime/net/sub/y.cc", 1)]
    (tmp_path / "runtime/net/sub/README.md").write_text("| `x` | one |\n| `y` | two |\n")
    assert problems_of(tmp_path, page, *files) == []


def test_row_without_a_file_is_found(tmp_path: Path) -> None:
    page = PAGE.replace("`link`", "`gone`")
    assert problems_of(tmp_path, page, "runtime/net/sub/x.h") == [("runtime/net/README.md", 5)]


def test_a_row_names_one_file_and_a_file_has_one_row(tmp_path: Path) -> None:
    files = ("runtime/net/link.h", "runtime/net/out.h", "runtime/net/sub/x.h")
    assert problems_of(tmp_path, PAGE.replace("`link`", "`link` `out`"), *files) == [("runtime/net/README.md", 5)]
    assert problems_of(tmp_path, PAGE + "| `out` | out |\n| `link` | again |\n", *files) == [
        ("runtime/net/README.md", 8)
    ]


def test_long_page_is_found(tmp_path: Path) -> None:
    assert problems_of(tmp_path, PAGE, "runtime/net/link.h", "runtime/net/sub/x.h") == []
    (tmp_path / "ARCHITECTURE.md").write_text("\n" * (MAX_LINES + 1))
    assert [p.path for p in map_problems(tmp_path)] == ["ARCHITECTURE.md"]


def test_rows_are_added_and_dropped(tmp_path: Path) -> None:
    page = PAGE.replace("| `sub/` | more |", "| `gone` | more |")
    assert problems_of(tmp_path, page, "runtime/net/link.h", "runtime/net/new.h", "runtime/net/new_part.cc") != []
    add_rows(tmp_path)
    text = (tmp_path / "runtime/net/README.md").read_text()
    assert list(map_problems(tmp_path)) == []
    assert "| `new` | A purpose |" in text
    assert "gone" not in text
    assert "new_part" not in text


def test_a_folder_with_many_files_is_found(tmp_path: Path) -> None:
    files = ["runtime/net/link.h", "runtime/net/sub/x.h", *(f"tests/unit/t{i}_test.cc" for i in range(25))]
    assert problems_of(tmp_path, PAGE, *files) == []
    assert problems_of(tmp_path, PAGE, "tests/unit/more_test.cc") == [("tests/unit", 1)]
