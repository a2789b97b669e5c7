"""The option checker finds stale pages and options without a test."""

from __future__ import annotations

from pathlib import Path

from check_options import option_names, problems, stale, untested

TABLE = """// SRT_OPTION(section, key, ...) explained
SRT_SECTION(net, NetOptions)
SRT_OPTION(net, interface, String, "", "", kLocal, "", "Help.")
SRT_OPTION(net,
           address, String, "", "", kLocal, "", "Help.")
SRT_SECTION_END(net)
"""
PAGE = "### net.interface\n### net.address\n"


def make_tree(root: Path, page: str = PAGE, test: str = '"net.interface" "net.address"') -> Path:
    """Writes a project of one table, one page and one test."""
    for path, text in (
        ("runtime/base/config/options.inc", TABLE),
        ("docs/options.md", page),
        ("tests/unit/base/config_test.cc", test),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_rows_are_found_over_line_breaks_and_not_in_comments() -> None:
    assert option_names(TABLE) == ["net.interface", "net.address"]


def test_an_option_counts_as_tested_only_by_its_whole_name() -> None:
    assert untested(["net.interface"], ['"net.interface_two"', "net.interface"]) == ["net.interface"]
    assert untested(["net.interface"], ["", 'x = "net.interface";']) == []


def test_a_page_is_stale_when_one_character_differs() -> None:
    assert stale("a\nb\n", "a\nb\n") == []
    assert "+c" in stale("a\nb\n", "a\nc\n")


def test_a_good_tree_has_no_problem(tmp_path: Path) -> None:
    assert problems(make_tree(tmp_path), PAGE) == []


def test_stale_page_untested_row_and_missing_paragraph_are_reported(tmp_path: Path) -> None:
    found = "\n".join(problems(make_tree(tmp_path, page="old\n", test='"net.interface"'), "### net.interface\n"))
    assert "no test names the option net.address" in found
    assert "docs/options.md is not what the option table says" in found
    assert "docs/options.md: net.address is missing" in found


def test_a_missing_page_is_stale(tmp_path: Path) -> None:
    make_tree(tmp_path)
    (tmp_path / "docs/options.md").unlink()
    assert problems(tmp_path, PAGE)
