"""The checker of exported symbols names each that is missing or new."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from check_symbols import differences


def test_every_difference_is_named() -> None:
    assert differences({"a", "b"}, {"a", "b"}) == []
    assert differences({"a", "c"}, {"a", "b"}) == ["missing: b", "not in the list: c"]
