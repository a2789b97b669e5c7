"""Transfer of a state in sync(): the bytes of a tensor go to the ranks that lack them.

Ranks exchange the digests of their tensors first. Survivors of a loss that go back to the same commit have equal ones,
so nothing else travels. A new rank lacks everything, and each of the others sends it a share. A tensor is left out only
if the digest of all its bytes is the same on all ranks.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sirtaki import basics

Tensor = TypeVar("Tensor")
#: For each tensor, the ranks that lack the bytes of the rank that gives them; the same on all ranks.
Wanted = list[list[int]]

#: Name of the exchange of digests. A rank that waits in vain for the others names the call.
CALL = "state.sync()"
#: Names the other exchange.
VALUES = "sirtaki.sync.values"
_DIGEST_BYTES, _KIND_BYTES = 16, 4
#: Replaces the digest of a tensor that has none: two integers, as of a digest.
_NONE = (0, 0)
#: Limits the bytes of one exchange, for which ranks need memory beside that of the tensors; one tensor may have more.
_BATCH_BYTES = 64 << 20


def digest(kind: str, values: Any) -> bytes:
    """Returns the digest of a tensor.

    Args:
        kind: shape and type.
        values: all bytes in row-major order.
    """
    return struct.pack("<I", zlib.crc32(kind.encode())) + hashlib.sha256(values).digest()[: _DIGEST_BYTES - _KIND_BYTES]


def _kind(halves: tuple[int, int]) -> int:
    """Returns the part of a digest that tells shape and type."""
    return halves[0] & (2 ** (8 * _KIND_BYTES) - 1)


class Transfer:
    """Transfers tensors; derived classes have those of a framework, and its operations."""

    def lacking(self, tensors: Sequence[Any], root: int) -> Wanted:
        """Returns for each tensor the ranks that lack the bytes of rank `root`. Collective.

        Jobs that are not elastic exchange no digests: all other ranks lack everything.

        Args:
            tensors: those of this rank, as many on all ranks.
            root: the rank whose bytes all ranks get.
        """
        if not tensors or not basics.is_elastic() or basics.size() == 1:
            return [[rank for rank in range(basics.size()) if rank != root] for _ in tensors]
        digests = [self._digest(tensor) for tensor in tensors]
        own = [half for one in digests for half in (_NONE if one is None else struct.unpack("<qq", one))]
        everywhere = [list(zip(row[::2], row[1::2], strict=True)) for row in self._rows(own)]
        wanted = []
        for place, right in enumerate(everywhere[root]):
            column = [row[place] for row in everywhere]
            # Bytes of another kind are no values for a tensor: a broadcast tells that ranks differ.
            to_all = right == _NONE or any(_kind(one) != _kind(right) for one in column if one != _NONE)
            lack = [rank for rank, one in enumerate(column) if to_all or one != right]
            wanted.append([rank for rank in lack if rank != root])
        return wanted

    def deliver(self, tensors: Sequence[Any], wanted: Wanted) -> list[bool]:
        """Sends tensors to the ranks that lack them, where these are few, and returns which are left. Collective.

        All others have the bytes and send a share, so none of them sends more than a broadcast takes of its root. The
        rest is left for a broadcast.

        Args:
            tensors: those of this rank, which get the bytes.
            wanted: a result of lacking().
        """
        left = [bool(ranks) for ranks in wanted]
        for takers in dict.fromkeys(tuple(ranks) for ranks in wanted if ranks):
            if basics.size() == 2 or 2 * len(takers) > basics.size():
                continue
            places = [place for place, ranks in enumerate(wanted) if tuple(ranks) == takers]
            for batch in self._batches([tensors[place] for place in places]):
                self._carry(batch, takers)
            for place in places:
                left[place] = False
        return left

    def _batches(self, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        batch: list[Tensor] = []
        total = 0
        for tensor in tensors:
            size = self._size(tensor)
            if batch and total + size > _BATCH_BYTES:
                yield batch
                batch, total = [], 0
            batch.append(tensor)
            total += size
        if total > 0:
            yield batch

    def _carry(self, tensors: Sequence[Any], takers: Sequence[int]) -> None:
        """Gives some ranks the bytes that all others have. Collective."""
        ranks, rank = range(basics.size()), basics.rank()
        sizes = [self._size(tensor) for tensor in tensors]
        parts: list[Any] = []
        if rank not in takers:
            holders = [one for one in ranks if one not in takers]
            place = holders.index(rank)
            begin, end = (sum(sizes) * edge // len(holders) for edge in (place, place + 1))
            at = 0
            for tensor, size in zip(tensors, sizes, strict=True):
                first, last = max(begin - at, 0), min(end - at, size)
                if first < last:
                    parts.append(self._read(tensor)[first:last])
                at += size
        length = sum(map(len, parts))
        got = self._exchange(parts * len(takers), [length if one in takers else 0 for one in ranks])
        if rank in takers:
            at = 0
            for tensor, size in zip(tensors, sizes, strict=True):
                self._write(tensor, got[at : at + size])
                at += size

    def _digest(self, tensor: Any) -> bytes | None:
        """Returns the digest of a tensor; None if it has to be sent."""
        raise NotImplementedError

    def _rows(self, row: list[int]) -> list[list[int]]:
        """Returns the rows of all ranks. Collective."""
        raise NotImplementedError

    def _size(self, tensor: Any) -> int:
        """Returns the number of bytes."""
        raise NotImplementedError

    def _read(self, tensor: Any) -> Any:
        """Returns all bytes in row-major order, as an array of bytes, maybe in the memory of the tensor."""
        raise NotImplementedError

    def _write(self, tensor: Any, values: Any) -> None:
        """Sets the tensor to a result of _read(), of any rank."""
        raise NotImplementedError

    def _exchange(self, parts: Sequence[Any], splits: Sequence[int]) -> Any:
        """Sends splits[r] of the bytes in `parts` to rank r, and returns those that come, in rank order. Collective."""
        raise NotImplementedError
