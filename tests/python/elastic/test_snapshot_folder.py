"""Files and folders of snapshots: damaged files are never read, and one job at a time writes."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sirtaki.elastic._snapshot_file import VERSION, Header, NewerFormatError, check, load
from sirtaki.elastic._snapshot_folder import BusyError, Folder, Owner


def write(folder: Folder, number: int, **values: Any) -> Path:
    folder.write(Header(number, 0.0, "a", 2), values, {})
    return folder.path / f"snapshot-{number:012d}"


def read_newest(folder: Folder) -> tuple[int, list[str]]:
    """Returns the number of the newest snapshot that can be read, and the lines about others."""
    told: list[str] = []
    found = folder.newest(told.append)
    assert found is not None
    return found.header.number, told


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path))


def test_two_snapshots_are_kept(folder: Folder) -> None:
    for number in (1, 2, 30, 4):
        path = write(folder, number, step=number)
    assert load(path) == {"step": 4}
    assert folder.numbers() == [30, 4]
    assert read_newest(folder) == (30, [])
    assert sorted(p.name for p in folder.path.iterdir()) == ["snapshot-000000000004", "snapshot-000000000030"]


def test_the_snapshot_made_last_is_never_removed(folder: Folder) -> None:
    for number in (7, 8):
        write(folder, number, step=number).write_text("torn")
    write(folder, 5, step=5)
    assert read_newest(folder)[0] == 5


def test_damaged_files_do_not_count_among_those_that_are_kept(folder: Folder) -> None:
    whole = write(folder, 1, step=1).read_bytes()
    damaged = whole[:-1] + bytes([whole[-1] ^ 1])
    for number in (2, 3):
        (folder.path / f"snapshot-{number:012d}").write_bytes(damaged)
    for opened in (Folder(str(folder.path)), folder):  # one that has not seen the files being written
        write(opened, 4, step=4)
        assert opened.numbers() == [4, 3, 2, 1]
    assert read_newest(folder) == (4, [])
    write(folder, 5, step=5)
    assert folder.numbers() == [5, 4]


def test_a_file_is_read_once_to_see_whether_it_is_whole(folder: Folder) -> None:
    for number in (1, 2):
        write(folder, number, step=number)
    again = Folder(str(folder.path))
    with mock.patch("sirtaki.elastic._snapshot_file.check", wraps=check) as checked:
        for number in range(3, 9):
            write(again, number, step=number)
    assert checked.call_count == 1  # snapshot 2


@pytest.mark.parametrize("links", [True, False])
def test_a_whole_snapshot_is_not_replaced_by_one_of_the_same_training(folder: Folder, links: bool) -> None:
    def write_as(training: str, step: int) -> bool:
        return folder.write(Header(1, 0.0, "a", 2, training), {"step": step}, {})

    path = folder.path / "snapshot-000000000001"
    refused = OSError(errno.EPERM, "Operation not permitted")
    with nullcontext() if links else mock.patch("os.link", side_effect=refused):
        assert write_as("one", 1)
        assert not write_as("one", 2)
        assert load(path) == {"step": 1}
        assert write_as("another", 3)
        assert load(path) == {"step": 3}
        path.write_text("torn")
        assert write_as("another", 4)
        assert load(path) == {"step": 4}
    assert [one.name for one in folder.path.iterdir()] == [path.name]


@pytest.mark.parametrize(("code", "is_error"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_flushed_does_not_fill_up(folder: Folder, code: int, is_error: bool) -> None:
    flush = os.fsync

    def fsync(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(code, os.strerror(code))
        flush(file)

    with mock.patch("os.fsync", side_effect=fsync):
        for number in (1, 2, 3):
            with pytest.raises(OSError, match="error") if is_error else nullcontext():
                write(folder, number, step=number)
    assert folder.numbers() == [3, 2]


def test_the_one_before_takes_the_place_of_a_file_that_is_cut_off(folder: Folder) -> None:
    write(folder, 1, step=1)
    path = write(folder, 2, step=2)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        number, told = read_newest(folder)
        assert (number, len(told)) == (1, 1)
        assert f"{path} is left out: it" in told[0]
    path.write_bytes(whole)
    assert read_newest(folder) == (2, [])


def test_a_foreign_file_is_left_out(folder: Folder) -> None:
    write(folder, 1, step=1)
    text = b"a file of somebody else, which is long enough to have room for a header"
    for content in (text, text + hashlib.sha256(text).digest()):
        (folder.path / "snapshot-000000000002").write_bytes(content)
        assert read_newest(folder)[0] == 1
    (folder.path / "snapshot-000000000003").mkdir()
    assert read_newest(folder)[0] == 1


def test_a_whole_file_of_a_newer_format_is_an_error(folder: Folder) -> None:
    write(folder, 1, step=1)
    path = write(folder, 2, step=2)
    newer = bytearray(path.read_bytes()[:-32])
    newer[8] = VERSION + 1
    path.write_bytes(newer + hashlib.sha256(newer).digest())
    with pytest.raises(NewerFormatError, match=rf"{path} cannot be read: a newer version of Sirtaki .*remove the file"):
        read_newest(folder)
    path.write_bytes(newer + bytes(32))
    assert read_newest(folder)[0] == 1


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [10, 5000])
def test_a_full_disk_leaves_the_snapshots_before(folder: Folder, size: int) -> None:
    write(folder, 1, step=1)
    with files_up_to(size), pytest.raises(OSError, match="File too large"):
        write(folder, 2, data=bytes(100_000))
    assert [path.name for path in folder.path.iterdir()] == ["snapshot-000000000001"]
    assert read_newest(folder) == (1, [])


def test_a_second_job_is_refused_until_the_first_one_has_ended(folder: Folder) -> None:
    program = (
        "import sys\nfrom sirtaki.elastic._snapshot_folder import Folder, Owner\n"
        f"taken = Folder({str(folder.path)!r}).acquire\n"
        "taken(Owner('first', 'host', 'node-a', 4711), True)\nprint(flush=True)\nsys.stdin.read()"
    )
    second = Owner("second", "host", "node-a", 1)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        for is_first in (True, False):
            with pytest.raises(BusyError, match=r"another job \(process 4711 on node-a\) writes its snapshots to"):
                folder.acquire(second, is_first)
        # A process of this host that its own job has given up keeps its lock.
        assert folder.acquire(Owner("first", "host", "node-a", 2), False)
        assert not Folder(str(folder.path)).acquire(Owner("first", "other host", "node-b", 3), False)
        first.kill()
    assert folder.acquire(second, True)
    folder.release()


def test_the_hosts_of_a_job_share_a_folder(folder: Folder) -> None:
    (folder.path / "unfinished-1").touch()
    assert folder.acquire(Owner("job", "a", "node-a", 1), True)
    assert not (folder.path / "unfinished-1").exists()
    other = Folder(str(folder.path))
    assert not other.acquire(Owner("job", "b", "node-b", 2), False)
    # Host a is lost.
    assert other.acquire(Owner("job", "b", "node-b", 2), True)
    folder.release()
    other.release()


def test_a_folder_without_locks_is_used_with_a_warning(folder: Folder) -> None:
    (folder.path / "unfinished-1").touch()
    told: list[str] = []
    with mock.patch("fcntl.lockf", side_effect=OSError(errno.ENOLCK, "No locks available")):
        for _ in range(2):
            assert folder.acquire(Owner("job", "a", "node-a", 1), True, told.append)
    assert len(told) == 1
    assert "has no locks" in told[0]
    assert (folder.path / "unfinished-1").exists(), "another job may be writing it"
    folder.release()


def test_the_owner_is_on_the_disk_before_other_hosts_look(folder: Folder) -> None:
    seen = []
    with mock.patch("os.fsync", side_effect=lambda _: seen.append((folder.path / "lock").read_text())):
        folder.acquire(Owner("job", "a", "node-a", 1), True)
    assert len(seen) == 1
    assert '"node-a"' in seen[0]
    folder.release()


def test_a_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    made = Folder(str(tmp_path / "a" / "b"))
    assert made.numbers() == []
    assert made.acquire(Owner("job", "a", "node-a", 1), True)
    assert made.path.stat().st_mode & 0o777 == 0o700
    made.release()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Folder(str(tmp_path / "file" / "b")).acquire(Owner("job", "a", "node-a", 1), True)
