"""The checker of links finds missing files and missing names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from check_links import link_problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](x/job.cc)", None),
        ("[`Job::run`](x/job.cc)", None),
        ("[`Job::stop`](x/job.cc)", "x/job.cc has no Job::stop"),
        ("[`helper`](x/job.cc)", None),
        ("[`helpers`](x/job.cc)", "x/job.cc has no helpers"),
        ("[a](x/gone.cc#L3)", "x/gone.cc#L3 does not exist"),
        ("[a\nb](x/gone.cc)", "x/gone.cc does not exist"),
        ("[a](https://example.org/x) [b](#here)", None),
        ("```\n[a](x/gone.cc)\n```", None),
    ],
)
def test_links(tmp_path: Path, text: str, problem: str | None) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/job.cc").write_text("int helper();\nint Job::run() {\n}\n")
    (tmp_path / "page.md").write_text(text)
    found = [p.text for p in link_problems(tmp_path, ["page.md"])]
    assert found == ([problem] if problem else [])
