"""The folder of snapshots of a job: their names, the lock against other jobs, and which of them is read."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from sirtaki.elastic import _snapshot_file
from sirtaki.elastic._snapshot_file import Header

_NAME = re.compile(r"snapshot-(\d+)")
_UNFINISHED = "unfinished-"
#: The last whole snapshot, and the one before for the case that the last one is damaged later.
_KEPT = 2


class BusyError(Exception):
    """Another job writes to the folder."""


@dataclass(frozen=True)
class Owner:
    """The writer of a folder: a host of a job, with the name of the host for texts, and a process."""

    job: str
    host: str
    hostname: str
    pid: int
    #: Identifier of the training whose snapshots the folder is for; "": any, as it is new.
    training: str = ""


@dataclass(frozen=True)
class Found:
    """A snapshot that can be read."""

    path: str
    header: Header
    digest: str


class Folder:
    """A folder of snapshots. Used by one thread at a time, except for write()."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._lock: int | None = None
        self._owner: Owner | None = None
        #: Snapshots whose bytes have been read or written here, by number: True for those that are whole.
        self._whole: dict[int, bool] = {}

    def acquire(self, owner: Owner, is_first: bool, tell: Callable[[str], Any] = lambda text: None) -> bool:
        """Makes the folder, if need be, and takes it for a host of a job. Returns False if another host of it has it.

        Then the hosts share the folder, and one of them writes. Call it first on the host of rank 0, with `is_first`,
        which never returns False. It tells of a file system without locks.

        Raises:
            BusyError: another job writes there.
            OSError: the folder cannot be written.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_new = self._lock is None
        if self._lock is None:
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A lock of the process: its children, such as workers of a DataLoader, may outlive it.
        held = _locked(self._lock)
        if held is None and is_new:
            tell(f"warning: {self.path} has no locks, so nothing keeps a second job from writing there")
        before = _owner_of(os.pread(self._lock, 4096, 0))
        known = before is not None and before.job == owner.job
        if held is False and not known:
            self.release()
            by = f" (process {before.pid} on {before.hostname})" if before is not None else ""
            raise BusyError(f"another job{by} writes its snapshots to {self.path}; give each job a folder of its own")
        if before is not None and known and before.host != owner.host and not is_first:
            self.release()
            return False
        # Without the lock, the owner is a process of this host that the job has given up.
        self._write_owner(replace(owner, training="" if before is None else before.training))
        if held and is_new:  # otherwise a thread of this process may write
            for path in self.path.glob(f"{_UNFINISHED}*"):
                path.unlink(missing_ok=True)
        return True

    def is_of(self, training: str) -> bool:
        """Returns False if there are snapshots of another training, to be kept. Call acquire() first."""
        assert self._owner is not None
        if self._owner.training == training:
            return True
        return all(header.training == training for header in self._headers())

    def has_ended(self) -> bool:
        """Returns True if the training of the newest snapshot has ended with it, as far as its header tells."""
        with suppress(_snapshot_file.NewerFormatError):
            for header in self._headers():
                return header.ended
        return False

    def _headers(self) -> Iterator[Header]:
        """Yields the headers that can be read, the newest first. Raises NewerFormatError for those that are newer."""
        for number in self.numbers():
            with suppress(_snapshot_file.UnreadableError, OSError):
                yield _snapshot_file.header_of(self._path_of(number))

    def use_for(self, training: str) -> None:
        """Makes the folder that of a training: newest() leaves out those of others. Call acquire() first."""
        assert self._owner is not None
        if self._owner.training != training:
            self._write_owner(replace(self._owner, training=training))

    def _write_owner(self, owner: Owner) -> None:
        assert self._lock is not None
        text = json.dumps(asdict(owner)).encode()
        os.pwrite(self._lock, text, 0)
        os.ftruncate(self._lock, len(text))
        os.fsync(self._lock)  # else other hosts see it only later on NFS, and take the lock for that of another job
        self._owner = owner

    def release(self) -> None:
        """Leaves the folder to others."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def numbers(self) -> list[int]:
        """Returns the numbers of all snapshots, the newest first, whether they can be read or not."""
        names = os.listdir(self.path) if self.path.is_dir() else []
        return sorted((int(found[1]) for name in names if (found := _NAME.fullmatch(name))), reverse=True)

    def newest(self, tell: Callable[[str], Any]) -> Found | None:
        """Returns the newest snapshot that can be read, and tells why newer ones cannot.

        Raises:
            NewerFormatError: a newer version has written the newest one that is whole.
        """
        for number in self.numbers():
            path = self._path_of(number)
            try:
                header, digest = _snapshot_file.check(path)
            except _snapshot_file.NewerFormatError as error:
                raise _snapshot_file.NewerFormatError(
                    f"{path} cannot be read: {error}; use that version, or remove the file to go on from the one before"
                ) from None
            except (_snapshot_file.UnreadableError, OSError) as error:
                self._whole[number] = False
                tell(f"{path} is left out: {error}")
            else:
                self._whole[number] = True
                if self._owner is None or self._owner.training in ("", header.training):
                    return Found(str(path), header, digest)
                tell(f"{path} is left out: a training that has begun anew has taken its folder")
        return None

    def write(self, header: Header, state: Any, pickled_by: Mapping[type, Any]) -> bool:
        """Writes a snapshot, which is there as a whole or not at all, and removes all but the last ones.

        Returns False if another rank has written one with this number, which stays.

        Raises:
            OSError: it cannot be written.
            Exception: the state cannot be pickled.
        """
        with self.incoming(header) as incoming:
            _snapshot_file.write(incoming.file, header, state, pickled_by)
            return incoming.keep()

    def incoming(self, header: Header) -> Incoming:
        """Returns a context with a new file, which becomes the snapshot with this header in keep()."""
        return Incoming(self, header)

    def _path_of(self, number: int) -> Path:
        return self.path / f"snapshot-{number:012d}"

    def _has(self, header: Header) -> bool:
        """Returns True if there is a whole snapshot with this number, of the same training. Reads all of it."""
        with suppress(_snapshot_file.UnreadableError, _snapshot_file.NewerFormatError, OSError):
            return _snapshot_file.check(self._path_of(header.number))[0].training == header.training
        return False

    def _is_whole(self, number: int) -> bool:
        """Returns True if a snapshot is whole. Reads all of it, unless that has been done before."""
        if number not in self._whole:
            try:
                _snapshot_file.check(self._path_of(number))
                self._whole[number] = True
            except _snapshot_file.NewerFormatError:
                self._whole[number] = True
            except (_snapshot_file.UnreadableError, OSError):
                self._whole[number] = False
        return self._whole[number]

    def _remove_old(self, kept: int) -> None:
        """Removes the snapshots before the last whole ones. `kept`, the one made last, stays in any case."""
        self._whole[kept] = True
        whole = 0
        for number in self.numbers():
            if whole < _KEPT:
                whole += self._is_whole(number)
            elif number != kept:
                self._path_of(number).unlink(missing_ok=True)


class Incoming:
    """A file that becomes a snapshot, unless an error passes."""

    def __init__(self, folder: Folder, header: Header) -> None:
        self._folder = folder
        self._header = header
        self.target = folder._path_of(header.number)
        self.path = folder.path / f"{_UNFINISHED}{header.number}.{os.uname().nodename}.{os.getpid()}"

    def __enter__(self) -> Incoming:
        self.file: BinaryIO = open(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        return self

    def keep(self) -> bool:
        """Makes the file the snapshot `target`, also if the machine loses its power after this.

        Returns False if a whole one of the same training is there. It stays: in a folder that hosts share, a rank that
        leaves may come behind the next writer, whose snapshot is newer.
        """
        self.file.flush()
        os.fsync(self.file.fileno())
        if not self._take_name():
            return False
        try:
            _flush_folder(self._folder.path)
        finally:
            self._folder._remove_old(self._header.number)
        return True

    def _take_name(self) -> bool:
        try:
            os.link(self.path, self.target)  # an error if there is a file, whoever is faster
        except OSError:  # or the file system has no links
            if self._folder._has(self._header):
                return False
            os.replace(self.path, self.target)
        return True

    def __exit__(self, *_: object) -> None:
        # A full disk fails again, with the rest of the buffer.
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _flush_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network file systems flush no folders; the file is there.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(folder)


def _locked(file: int) -> bool | None:
    """Returns False if another process has locked the file; None: the file system has no locks."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # A file system without locks is no reason to train without snapshots.
        return False if error.errno in (errno.EAGAIN, errno.EACCES) else None
    return True


def _owner_of(text: bytes) -> Owner | None:
    try:
        return Owner(**json.loads(text))
    except (ValueError, TypeError):
        return None
