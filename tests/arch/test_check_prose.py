"""The prose checker finds fragments, fused clauses and possessives, and leaves code and sentences alone."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from check_prose import is_fragment, is_selected, prose_problems
from prose import blocks

ROOT = Path(__file__).resolve().parents[2]


def found(root: Path, path: str, text: str, selected: tuple[str, ...] = ()) -> list[int]:
    """Returns the lines with problems after writing a file into the tree."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    return [problem.line for problem in prose_problems(root, selected)]


@pytest.mark.parametrize(
    "sentence",
    [
        "What is owed.",
        "what travels: the payload",
        "Of what this rank sent: what did not arrive.",
        "Of NCCL, as it counts: 22809 is 2.28.9.",
        "As torch's, after wait(), and what this rank owes.",
        "As LocalSteps.",
        "Whether all ranks agree.",
        "By rank, the payload: or empty.",
        "None: not.",
        "To nearest, ties to even; overflow becomes infinity.",
        "Who waits.",
        "Which stripes are whose.",
        "How elements are combined.",
        "For what all ranks have agreed on.",
        "From whom it came.",
    ],
)
def test_fragments_are_found(sentence: str) -> None:
    assert is_fragment(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Returns what it got.",
        "By default, ranks wait.",
        "To close the session, call `close()` on all ranks.",
        "As long as a rank runs, its socket stays open.",
        "Of the elements that equal the limit, the first are taken.",
        "None of the ranks waits.",
        "How does a rank join?",
        "Tooling for tests.",
        "Whatever fails is logged.",
        "As_is stays.",
        '"what" is counted.',
    ],
)
def test_sentences_are_accepted(sentence: str) -> None:
    assert not is_fragment(sentence)


def test_every_sentence_of_a_doc_comment_is_read(tmp_path: Path) -> None:
    text = (
        "// Thing: a table. Of rows.\n//\n// Long sentence that ends\n// here. As\n// there.\n"
        "namespace x {\nstruct T {\n  int a;  // by rank\n  int b;  // a number\n          // of bytes, by rank\n};\n"
        "void f() {\n  // Of no concern.\n  g();  // what now\n}\n}\n"
    )
    assert found(tmp_path, "kernels/a.h", text) == [1, 4, 8]


def test_docstrings_and_arguments_are_read(tmp_path: Path) -> None:
    text = (
        '"""Thing."""\n\n\ndef f(a):\n    """Returns `a`.\n\n    Args:\n        a: Whether it is on.\n    """\n'
        '    x = "# what what what"\n    return a  # Of no concern.\n\n\n#: By name.\nX = 1\n'
    )
    assert found(tmp_path, "scripts/a.py", text) == [8, 14]


def test_what_is_counted_by_folder_and_page(tmp_path: Path) -> None:
    once, word = "// Takes what comes.\n", "// word\n"
    assert found(tmp_path, "kernels/a.cc", once) == []
    assert found(tmp_path, "kernels/b.cc", once) == [1, 1]
    assert found(tmp_path, "kernels/c.cc", word * 1000) == []
    (tmp_path / "kernels/c.cc").unlink()
    (tmp_path / "kernels/b.cc").unlink()
    page = "It does what it `says what`.\n\n```\nwhat what\n```\n" + "word\n" * 250
    assert found(tmp_path, "docs/a.md", page) == []
    assert found(tmp_path, "docs/a.md", page + "what\n") == [1, 256]
    assert found(tmp_path, "docs/a.md", page + "word\n" * 250 + "what\n") == []


def test_possessives_of_types_are_found(tmp_path: Path) -> None:
    text = "// Like Stream's and `Stream`'s, not Horovod's; all Streams' ends.\nclass Stream final {};\n"
    assert found(tmp_path, "runtime/a.h", text) == [1, 1]
    assert found(tmp_path, "docs/a.md", "The Stream's end.\n") == [1, 1, 1]


def test_a_waiver_excuses_its_line_and_the_next(tmp_path: Path) -> None:
    text = "int x;\n\n// lint: allow(prose) quotes a standard\n// What: Stream's.\nclass Stream {};\n"
    assert found(tmp_path, "runtime/a.h", text) == []
    assert found(tmp_path, "docs/a.md", "<!-- lint: allow(prose) a quote -->\nThe Stream's end.\n") == []


def test_only_selected_folders_are_read(tmp_path: Path) -> None:
    text = "// What is there.\n"
    assert found(tmp_path, "kernels/x/a.h", text, ("kernels/*", "runtime")) == []
    assert found(tmp_path, "kernels/x/a.h", text, ("kernels",)) == [1]
    assert is_selected("kernels/a.h", ("kernels/*",))
    assert not is_selected("kernels2/a.h", ("kernels",))


def test_block_comments_and_raw_strings_are_told_apart() -> None:
    text = '/* One\n * two */\nauto s = R"(// no)"; char c = \'"\'; // three\n'
    assert [[line for _, line in block.lines] for block in blocks("a.cc", text)] == [["One", "two"], ["three"]]


def test_the_whole_tree_is_read_in_seconds() -> None:
    begin = time.process_time()
    prose_problems(ROOT, None)
    assert time.process_time() - begin < 20  # about ten times its need
