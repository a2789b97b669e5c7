"""Files of snapshots: damaged ones are never read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sirtaki.elastic._snapshot_file import Header, NewerFormatError, UnreadableError, check, load, write

np = pytest.importorskip("numpy")

HEADER = Header(7, 0.0, "node-a", 2)


def made(path: Path, **values: Any) -> bytes:
    """Writes a file and returns its bytes."""
    with path.open("wb") as file:
        write(file, HEADER, values, {})
    return path.read_bytes()


def test_values_come_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    made(path, text="text", array=np.arange(1000.0), none=np.empty((0, 2)), objects=np.array([None]))
    assert check(path)[0] == HEADER
    state = load(path)
    assert (state["text"], state["none"].shape, state["objects"][0]) == ("text", (0, 2), None)
    np.testing.assert_array_equal(state["array"], np.arange(1000.0))
    state["array"] += 1  # arrays may be written to


def test_a_file_cut_at_any_byte_is_never_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    whole = made(path, step=2, array=np.arange(3))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        for reads in (check, load):
            with pytest.raises(UnreadableError):
                reads(path)


def test_a_file_with_any_damaged_byte_is_never_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    whole = made(path, step=2, array=np.arange(3))
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x21]) + whole[place + 1 :])
        with pytest.raises(UnreadableError):
            check(path)
        with pytest.raises((UnreadableError, NewerFormatError)):
            load(path)
    path.write_bytes(whole + b"\n")
    for reads in (check, load):
        with pytest.raises(UnreadableError):
            reads(path)
