"""The checker of decisions reports each fault of a file, of the numbers and of the index."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_decisions import FOLDER, INDEX, decision_problems, index, read_decisions

ROOT = Path(__file__).resolve().parents[2]
FIRST = "# 1. One loop\n\n- Status: superseded by 2\n- Topic: engine\n\n**Context.** Threads.\n\n**Decision.** One.\n"
SECOND = "# 2. Two loops\n\n- Status: in force\n- Topic: engine\n\n**Context.** Load.\n\n**Decision.** Two.\n"


def make_tree(root: Path, **files: str) -> Path:
    """Writes two good decisions, with the given texts in place of or beside them, and a fresh index."""
    (root / FOLDER).mkdir(parents=True)
    for name, text in {"001-one-loop": FIRST, "002-two-loops": SECOND, **files}.items():
        if text:
            (root / FOLDER / f"{name}.md").write_text(text)
    (root / INDEX).write_text(index(read_decisions(root)))
    return root


def texts(root: Path) -> list[str]:
    return [problem.text for problem in decision_problems(root)]


def test_the_decisions_of_this_project_are_well_formed() -> None:
    assert decision_problems(ROOT) == []


def test_a_good_folder_has_no_problem_and_the_index_links_files(tmp_path: Path) -> None:
    make_tree(tmp_path)
    assert texts(tmp_path) == []
    rows = (tmp_path / INDEX).read_text().splitlines()
    assert "| 1 | [One loop](001-one-loop.md) | superseded by [2](002-two-loops.md) | engine |" in rows
    assert rows[-1] == "| 2 | [Two loops](002-two-loops.md) | in force | engine |"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SECOND.replace("- Status: in force\n", ""), 'the line "- Status: ..." is missing'),
        (SECOND.replace("in force", "obsolete"), 'status "obsolete" is not'),
        (SECOND.replace("in force", "superseded by 3"), "superseded by 3, which does not exist"),
        (SECOND.replace("in force", "superseded in part by 3, 4"), "superseded by 4, which does not exist"),
        (SECOND.replace("in force", "superseded by 1"), "superseded by 1, which is not later"),
        (SECOND.replace("in force", "superseded by 2"), "superseded by 2, which is not later"),
        (SECOND.replace("- Topic: engine\n", ""), 'the line "- Topic: ..." is missing'),
        (SECOND.replace("# 2. ", "# "), 'the first line is not "# N. Title"'),
        (SECOND.replace("# 2. ", "# 3. "), "the title has number 3, the file name 2"),
        (SECOND.replace("**Decision.** Two.", "Two."), "the paragraph **Decision.** is missing"),
    ],
)
def test_a_fault_of_a_file_is_reported(tmp_path: Path, text: str, expected: str) -> None:
    make_tree(tmp_path, **{"002-two-loops": text})
    assert any(problem.startswith(expected) for problem in texts(tmp_path))


def test_a_status_in_the_prose_does_not_count(tmp_path: Path) -> None:
    text = SECOND.replace("- Status: in force\n", "") + "\n- Status: in force\n"
    make_tree(tmp_path, **{"002-two-loops": text})
    assert texts(tmp_path) == ['the line "- Status: ..." is missing']


def test_missing_and_repeated_numbers_are_reported(tmp_path: Path) -> None:
    again = SECOND.replace("Two loops", "Again")
    last = SECOND.replace("# 2. ", "# 4. ")
    make_tree(tmp_path, **{"002-two-again": again, "004-last": last})
    found = [text for text in texts(tmp_path) if "have number" in text]
    assert found == ["2 files have number 2, not one", "0 files have number 3, not one"]


def test_a_bad_file_name_is_reported(tmp_path: Path) -> None:
    make_tree(tmp_path, **{"002-two-loops": "", "2_Two": SECOND})
    assert texts(tmp_path) == ["the file name is not NNN-short-slug.md"]


@pytest.mark.parametrize("page", ["", "old"])
def test_a_stale_or_missing_index_is_reported(tmp_path: Path, page: str) -> None:
    make_tree(tmp_path)
    if page:
        (tmp_path / INDEX).write_text(page)
    else:
        (tmp_path / INDEX).unlink()
    assert texts(tmp_path) == ["the index is stale; run: python3 tests/arch/check_decisions.py --write"]
