"""The site builds without a broken link, its pages are short, and its measured table is that of the results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(ROOT / "scripts"))

import docs_site
import frontier_table

MAX_WORDS = 1500
GENERATED = ("docs/decisions/README.md", "docs/options.md")
FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)


def words_of(text: str) -> int:
    """Returns the number of words outside code blocks."""
    return sum(re.search(r"\w", word) is not None for word in FENCE.sub("", text).split())


def test_pages_are_short() -> None:
    pages = {path.relative_to(ROOT).as_posix(): words_of(path.read_text()) for path in (ROOT / "docs").rglob("*.md")}
    pages = {page: words for page, words in pages.items() if page not in GENERATED}
    long = {page: words for page, words in pages.items() if words > MAX_WORDS}
    assert long == {}, f"divide these pages along their headings: {long}"


def test_the_table_of_trainings_is_fresh() -> None:
    page = frontier_table.PAGE.read_text()
    assert frontier_table.refreshed(page) == page, "run: python3 tests/docs/frontier_table.py --write"


@pytest.mark.parametrize(
    ("page", "text", "moved"),
    [
        ("docs/gpu.md", "[a](../README.md#limits)", "[a](index.md#limits)"),
        ("docs/flows/launch.md", "[`f`](../../launcher/cli.cc)", "[`f`](../source/launcher/cli.cc.md)"),
        ("README.md", "[a\nb](docs/demo.md) ![c](docs/pictures/vgg19_1_forward.svg)",
         "[a\nb](demo.md) ![c](pictures/vgg19_1_forward.svg)"),
        ("ARCHITECTURE.md", "[a](launcher/README.md)", "[a](launcher/README.md)"),
        ("docs/gpu.md", "```\n[a](../README.md)\n```\n[b](https://example.org) [c](#top)", None),
    ],
)  # fmt: skip
def test_links_lead_to_the_places_in_the_site(page: str, text: str, moved: str | None) -> None:
    assert docs_site.rewrite(text, page) == (moved or text)
    assert docs_site.repository_path(docs_site.site_path(page)) == page


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    home = (tmp_path / "index.html").read_text()
    assert 'href="choose/"' in home
    assert "accelerate" in (tmp_path / "reference/sirtaki.torch.ddp/index.html").read_text()
    assert (tmp_path / "source/launcher/cli.cc/index.html").exists()
