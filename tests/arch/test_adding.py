"""Holds docs/adding.md: its codec is built in a copy of the tree, and every place that repeats a row has it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/adding.md"
BASE = ROOT / "runtime/base"
#: "File `path`:" or "Row of `path`, before `text`:", then a block of code.
BLOCK = re.compile(r"^(File|Row of) `([^`]+)`(?:, before `([^`]+)`)?:\n\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DTYPE = re.compile(r'^SRT_DTYPE\((\w+), (\d+), "(\w+)", (\d+), ', re.MULTILINE)
CODEC = re.compile(r"^SRT_(?:DENSE_)?CODEC\((\w+), (\w+), (\d+), ", re.MULTILINE)
MOST_WORDS = 1500


def apply_page(page: str, root: Path) -> list[str]:
    """Writes the files of the page and inserts its rows into the tree at `root`; returns the paths."""
    paths = []
    for kind, path, before, code in BLOCK.findall(page):
        target = root / path
        paths.append(path)
        if kind == "File":
            assert not target.exists(), f"{path} exists: the page must add a file"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(code)
        elif before:
            text = target.read_text()
            assert text.count(before) == 1, f"{path}: `{before}` must occur once"
            target.write_text(text.replace(before, code + before))
        else:
            target.write_text(target.read_text() + code)
    return paths


def copy_tree(root: Path) -> None:
    """Copies the sources of the project, without what builds leave behind."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("benchmarks/results/"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, root / name)


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_the_codec_of_the_page_passes_the_conformance_suite(tmp_path: Path) -> None:
    if shutil.which("cmake") is None or not (ROOT / ".git").exists():
        pytest.skip("needs cmake and a git checkout")
    copy_tree(tmp_path)
    paths = apply_page(PAGE.read_text(), tmp_path)
    assert len(paths) == 5, paths
    # The preset of `make cxx`, so that the compiler cache has all that the page does not change.
    run("cmake", "--preset", "release", "-DSIRTAKI_CUDA=OFF", "--log-level=WARNING", cwd=tmp_path)
    targets = ("payload_codec_conformance", "sirtaki_options_doc")
    run("cmake", "--build", "--preset", "release", "-j2", "--target", *targets, cwd=tmp_path)
    build = tmp_path / "build/release"
    suite = build / "tests/conformance/payload_codec_conformance"
    ran = run(suite, "--gtest_filter=*truncate*:PayloadCodecCatalog.*", cwd=tmp_path)
    assert re.search(r"\[  PASSED  \] [1-9]\d+ tests", ran), ran[-2000:]
    options = run(build / "runtime/base/sirtaki_options_doc", cwd=tmp_path)
    assert "### truncate\n" in options
    assert "### net.example\n" in options


def test_the_page_is_short_and_names_what_exists() -> None:
    page = PAGE.read_text()
    assert len(page.split()) < MOST_WORDS
    added = {path for kind, path, _, _ in BLOCK.findall(page) if kind == "File"}
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    for path in re.findall(r"`([\w./]+/[\w./]+)`", prose):
        if not path.startswith("build/"):
            assert path in added or (ROOT / path).exists(), path


@pytest.mark.parametrize("path", ["docs/compression.md"])
def test_every_codec_is_described(path: str) -> None:
    text = (ROOT / path).read_text()
    names = [row[0] for row in CODEC.findall((BASE / "codecs.inc").read_text())]
    assert names
    for name in names:
        assert f"`{name}`" in text, f"{path} does not describe the codec {name}"


def test_numbers_of_codecs_are_unique() -> None:
    numbers = [int(row[2]) for row in CODEC.findall((BASE / "codecs.inc").read_text())]
    assert len(set(numbers)) == len(numbers)


def test_every_dtype_is_known_outside_of_the_core() -> None:
    header = (ROOT / "adapters/c/sirtaki.h").read_text()
    python = (ROOT / "adapters/python/sirtaki/_dtypes.py").read_text()
    tensorflow = (ROOT / "adapters/tensorflow/call.cc").read_text()
    rows = DTYPE.findall((BASE / "dtypes.inc").read_text())
    assert rows
    for name, number, text, size in rows:
        constant = f"SIRTAKI_{name.upper()}"
        assert f"{constant} = {number}" in header, f"sirtaki_dtype (adapters/c/sirtaki.h) lacks {constant} = {number}"
        assert f'"{text}": WireType({number}, {size})' in python, (
            f"WIRE_TYPES (adapters/python/sirtaki/_dtypes.py) lacks {text} = WireType({number}, {size})"
        )
        assert f"{constant}, {size}}}" in tensorflow, f"kTypes (adapters/tensorflow/call.cc) lacks {constant}, {size}"
    enum = header.split("} sirtaki_dtype;")[0].rsplit("enum {", 1)[1]
    assert enum.count("SIRTAKI_") == len(rows), "sirtaki_dtype (adapters/c/sirtaki.h) has a dtype without a row"
