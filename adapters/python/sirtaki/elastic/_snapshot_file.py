"""The file of a snapshot: a state of a training, which is read as a whole or not at all.

It consists of the magic bytes, the version of the format and the length of the header (32 bits each, little-endian),
the header (JSON), a pickle, its buffers one after another, and the SHA-256 of all that, which every version of the
format has at the end. The buffers are the large arrays, so they are written from their own memory, without the GIL.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sirtaki._pickling import pickled_apart

MAGIC = b"SRTSNAP\n"
VERSION = 1
_BEGIN = struct.Struct("<8sII")
_DIGEST_BYTES = hashlib.sha256().digest_size
_CHUNK_BYTES = 1 << 20


class UnreadableError(Exception):
    """The file is torn, damaged, or no snapshot."""


class NewerFormatError(Exception):
    """The file is whole, and has a format that this version does not know."""


@dataclass(frozen=True)
class Header:
    """The description of a snapshot, which it begins with."""

    #: Number of the commit, which only grows, also from job to job.
    number: int
    #: Seconds since 1970.
    written: float
    #: Name of the host, and number of ranks.
    host: str
    ranks: int
    #: Identifier of the training, which jobs that go on from a snapshot keep.
    training: str = ""
    #: The training has ended with it.
    ended: bool = False


def write(file: BinaryIO, header: Header, state: Any, pickled_by: Mapping[type, Any]) -> None:
    """Writes `state`. `pickled_by` has the functions that pickle certain types, like a dispatch_table of pickle."""
    body, buffers = pickled_apart(state, pickled_by)
    lengths = {"pickle": len(body), "buffers": [buffer.nbytes for buffer in buffers]}
    text = json.dumps({**asdict(header), **lengths}).encode()
    digest = hashlib.sha256()
    parts: list[bytes | bytearray | memoryview] = [_BEGIN.pack(MAGIC, VERSION, len(text)), text, body, *buffers]
    for part in parts:
        digest.update(part)
        file.write(part)
    file.write(digest.digest())


def check(path: Path) -> tuple[Header, str]:
    """Reads all of a file, but does not unpickle it. Returns the header and the digest.

    Raises:
        UnreadableError: the file is torn, damaged or no snapshot.
        NewerFormatError: another version has written it.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
        if left < _BEGIN.size:
            raise UnreadableError("it is cut off")
        digest = hashlib.sha256()
        while left > 0:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise UnreadableError("it is cut off")
            digest.update(chunk)
            left -= len(chunk)
        if digest.digest() != file.read():
            raise UnreadableError("its digest is wrong: it is cut off or damaged")
        file.seek(0)
        header, _, _ = _read_header(file)
    return header, digest.hexdigest()


def header_of(path: Path) -> Header:
    """Returns the header of a file, and reads no more of it. Raises the errors of check()."""
    with path.open("rb") as file:
        return _read_header(file)[0]


def load(path: Path) -> Any:
    """Returns the state in a file. Unpickles it, which may run any code, once the digest is right.

    Raises:
        UnreadableError, NewerFormatError, OSError: as in check().
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        _, lengths, begin = _read_header(file)
        digest.update(begin)
        parts = []
        for length in lengths:
            part = bytearray(length)
            if file.readinto(part) != length:
                raise UnreadableError("it is cut off")
            digest.update(part)
            parts.append(part)
        if digest.digest() != file.read():
            raise UnreadableError("its digest is wrong: it is cut off or damaged")
    return pickle.loads(parts[0], buffers=parts[1:])


def _read_header(file: BinaryIO) -> tuple[Header, list[int], bytes]:
    """Returns the header, the lengths of the pickle and its buffers, and the bytes read."""
    size = os.fstat(file.fileno()).st_size
    begin = file.read(_BEGIN.size)
    if len(begin) < _BEGIN.size or not begin.startswith(MAGIC):
        raise UnreadableError("it is no snapshot")
    _, version, length = _BEGIN.unpack(begin)
    if version > VERSION:
        raise NewerFormatError(f"a newer version of Sirtaki has written it (format {version}, here {VERSION})")
    text = file.read(min(length, size))
    try:
        fields = json.loads(text)
        lengths = [fields["pickle"], *fields["buffers"]]
        header = Header(**{name: fields[name] for name in Header.__dataclass_fields__ if name in fields})
        whole = len(begin) + length + sum(lengths) + _DIGEST_BYTES
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableError("its header is damaged") from error
    if size != whole or min(lengths) < 0:
        raise UnreadableError("it is cut off")
    return header, lengths, begin + text
