"""Lets the tests of this folder import rank_support, and leave the environment as it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    """Restores variables: TensorFlow and torch set some on import, and ranks of later tests would start cold."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
