"""The command `sirtaki report`, and its page in a browser."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import run_examples

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

import browser

from sirtaki import __main__ as program
from sirtaki._telemetry import page
from sirtaki._telemetry.page_style import STYLE

SIZE = (1200, 2400)


@pytest.fixture(scope="module")
def full() -> str:
    return page.html(run_examples.full(seed=7))


def write_run(folder: Path, run: dict[str, Any]) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps({"format": "sirtaki-run", "version": 1, **run}))
    return path


def test_the_command_writes_a_page_beside_the_file(tmp_path: Path, full: str) -> None:
    path = write_run(tmp_path, run_examples.full(seed=7))
    command = [sys.executable, "-m", "sirtaki", "report", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path / 'run.html'}\n"
    assert (tmp_path / "run.html").read_text() == full


def test_the_page_goes_where_it_is_wanted(tmp_path: Path, full: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path, run_examples.full(seed=7))
    assert program.main(["report", str(path), "-o", "-"]) == 0
    assert capsys.readouterr().out == full
    assert program.main(["report", str(path), "-o", str(tmp_path / "other.htm")]) == 0
    assert (tmp_path / "other.htm").read_text() == full
    assert program.main(["report", str(path), "-o", str(path)]) == 1
    assert "the run file itself" in capsys.readouterr().err
    assert program.main(["report", str(tmp_path / "absent.json")]) == 1
    assert "absent.json" in capsys.readouterr().err
    path.write_text("no JSON")
    assert program.main(["report", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"sirtaki report: {path} is not a run file: ")


def test_the_package_installs_the_command() -> None:
    text = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text()
    (target,) = re.findall(r'^\[project\.scripts\]\nsirtaki = "(.+)"$', text, re.MULTILINE)
    module, name = target.split(":")
    assert getattr(importlib.import_module(module), name) is program.main


# ---- a browser ----


def color(name: str, dark: bool) -> tuple[int, ...]:
    """Returns the color of a variable of the style sheet."""
    found = re.findall(rf"--{name}:#(\w+)", STYLE)[int(dark)]
    return tuple(bytes.fromhex(found))


def picture(text: str, folder: Path, dark: bool) -> tuple[Counter[tuple[int, ...]], str]:
    """Returns the pixels by color of the page as a browser draws it, and the messages of its console."""
    if browser.find() is None:
        pytest.skip("there is no browser; scripts/setup.sh installs chromium-headless-shell")
    image, console = browser.draw(text, folder, dark, SIZE)
    pixels: Counter[tuple[int, ...]] = Counter()
    pixels.update({found: count for count, found in image.getcolors(image.width * image.height) or []})
    return pixels, console


@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_every_series_and_has_no_complaint(dark: bool, full: str, tmp_path: Path) -> None:
    pixels, console = picture(full, tmp_path, dark)
    assert console == ""
    assert pixels.most_common(2)[1][0] in (color("page", dark), color("card", dark))
    for series in ("c0", "c1", "c2", "c4"):
        assert pixels[color(series, dark)] > 300, (series, pixels[color(series, dark)])
    assert pixels[color("c4", not dark)] == 0


def test_a_browser_would_show_what_is_wrong(full: str, tmp_path: Path) -> None:
    pixels, console = picture(full.replace("</body>", "<script>absent()</script></body>"), tmp_path, False)
    assert "absent is not defined" in console
    empty, _ = picture(page.html(run_examples.least()), tmp_path, False)
    assert empty[color("c0", False)] == 0 < pixels[color("c0", False)]
