"""Draws pages in a browser, for tests and for the screenshots of docs/pictures.

usage: browser.py --write; draws the screenshots anew.

docs/pictures/run.json is the run file of examples/pytorch_transformer.py with `--local-updates 8`, on four ranks behind
links of 20 Mbit/s; demo.json is that of `make demo` with compression=auto.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from sirtaki._telemetry import page

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
PICTURES = Path(__file__).resolve().parents[2] / "docs/pictures"
#: Run file by screenshot.
SCREENSHOTS = {"run_page.png": "run.json", "demo.png": "demo.json"}
SIZE = (1200, 1500)
COLORS = 64


def find() -> str | None:
    """Returns the path of a browser; None if there is none."""
    return next((found for found in map(shutil.which, BROWSERS) if found), None)


def draw(text: str, folder: Path, dark: bool = False, size: tuple[int, int] = SIZE) -> tuple[Image.Image, str]:
    """Returns a page as the browser draws it, and the messages of its console."""
    (folder / "page.html").write_text(text)
    picture = folder / "page.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--hide-scrollbars"]
    options += [
        f"--user-data-dir={folder / 'profile'}",
        f"--screenshot={picture}",
        f"--window-size={size[0]},{size[1]}",
    ]
    # The setting has 0 for dark and 1 for light.
    options += [f"--blink-settings=preferredColorScheme={int(not dark)}", (folder / "page.html").as_uri()]
    browser = find()
    assert browser is not None
    done = subprocess.run([browser, *options], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with Image.open(picture) as image:
        drawn = image.convert("RGB")
    return drawn, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def screenshot(name: str, folder: Path) -> Image.Image:
    """Returns a screenshot of the page of a run, with few colors so that its file is small."""
    image, console = draw(page.html(json.loads((PICTURES / SCREENSHOTS[name]).read_text())), folder)
    assert console == ""
    return image.quantize(COLORS, dither=Image.Dither.NONE)


def main() -> int:
    """Command line."""
    if "--write" not in sys.argv[1:]:
        print(__doc__)
        return 2
    for name in SCREENSHOTS:
        with tempfile.TemporaryDirectory() as folder:
            screenshot(name, Path(folder)).save(PICTURES / name, optimize=True)
        print(PICTURES / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
