"""The screenshots of the pages are those that a browser draws now."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PIL import Image, ImageChops, ImageStat

sys.path.insert(0, str(Path(__file__).resolve().parent))

import browser

SCALE = 10  # each pixel of the comparison is the mean of 10 x 10, so that fonts and their edges do not count
MOST_DIFFERENT = 6.0  # mean difference, of 255


def smaller(image: Image.Image) -> Image.Image:
    return image.convert("L").reduce(SCALE)


def difference(one: Image.Image, other: Image.Image) -> float:
    return ImageStat.Stat(ImageChops.difference(smaller(one), smaller(other))).mean[0]


@pytest.mark.parametrize("name", browser.SCREENSHOTS)
@pytest.mark.skipif(browser.find() is None, reason="there is no browser; scripts/setup.sh installs one")
def test_the_picture_of_a_run_is_that_of_its_page(name: str, tmp_path: Path) -> None:
    with Image.open(browser.PICTURES / name) as image:
        stored = image.convert("RGB")
    drawn = browser.screenshot(name, tmp_path).convert("RGB")
    assert stored.size == drawn.size
    assert difference(stored, drawn) < MOST_DIFFERENT, "run: .venv/bin/python tests/docs/browser.py --write"
    upside_down = drawn.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    assert difference(stored, upside_down) > MOST_DIFFERENT
