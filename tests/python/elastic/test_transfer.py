"""Transfer of a state in sync(), between threads and between ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from rank_support import case_names, check_case
from thread_ranks import Exchange

from sirtaki import basics
from sirtaki.elastic import _transfer


class Transfer(_transfer.Transfer):
    """Transfers bytearrays between threads; an empty text has no digest."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self._all, self._me = exchange, rank
        self.sent = 0

    def _digest(self, tensor: Any) -> bytes | None:
        return None if tensor in ("", None) else _transfer.digest("bytes", tensor)

    def _rows(self, row: list[int]) -> list[list[int]]:
        return self._all.gather("rows", row)

    def _size(self, tensor: bytearray) -> int:
        return len(tensor)

    def _read(self, tensor: bytearray) -> bytes:
        return bytes(tensor)

    def _write(self, tensor: bytearray, values: bytes) -> None:
        tensor[:] = values

    def _exchange(self, parts: Any, splits: Any) -> bytes:
        data = b"".join(parts)
        self.sent += len(data)
        assert len(data) == sum(splits)
        got = []
        for sent, counts in self._all.gather("exchange", (data, splits)):
            begin = sum(counts[: self._me])
            got.append(sent[begin : begin + counts[self._me]])
        return b"".join(got)


def transfer(states: list[list[Any]], root: int = 0, is_elastic: bool = True) -> list[tuple[Any, list[bool], int]]:
    """Returns the tensors that each rank finds wanted, those left for a broadcast, and the bytes that it has sent."""
    exchange = Exchange(len(states))

    def one(rank: int) -> tuple[Any, list[bool], int]:
        exchange.own.rank = rank
        made = Transfer(exchange, rank)
        wanted = made.lacking(states[rank], root)
        return wanted, made.deliver(states[rank], wanted), made.sent

    job = mock.patch.multiple(basics, is_elastic=lambda: is_elastic, size=lambda: len(states), rank=exchange.rank)
    with job, ThreadPoolExecutor(len(states)) as pool:
        return list(pool.map(one, range(len(states))))


def tensors(*values: bytes) -> list[Any]:
    return [bytearray(value) for value in values]


def test_equal_tensors_are_left_out() -> None:
    for root in range(3):
        found = transfer([tensors(b"weight", b"") for _ in range(3)], root)
        assert found == [([[], []], [False, False], 0)] * 3


def test_a_tensor_that_one_bit_tells_apart_is_sent_to_all_who_lack_it() -> None:
    for ranks, victim in ((2, 1), (3, 0), (4, 3)):
        states = [tensors(b"weight", b"bias") for _ in range(ranks)]
        states[victim][0][-1] ^= 1
        expected = [rank for rank in range(ranks) if rank] if victim == 0 else [victim]
        found = transfer(states)
        assert [wanted for wanted, _, _ in found] == [[expected, []]] * ranks
        broadcast = ranks == 2 or victim == 0
        assert [left for _, left, _ in found] == [[broadcast, False]] * ranks
        assert broadcast or states[victim] == states[0]


def test_a_tensor_without_a_digest_is_sent_though_all_ranks_have_none() -> None:
    assert transfer([["", bytearray(b"x")] for _ in range(3)])[1][:2] == ([[1, 2], []], [True, False])
    states: list[list[Any]] = [[bytearray(b"x")], [""], [bytearray(b"x")]]
    assert transfer(states, 1)[0][0] == [[0, 2]], "rank 1 gives it"


@pytest.mark.parametrize("new", [[3], [1, 4], [0]])
def test_the_others_share_what_new_ranks_lack(new: list[int]) -> None:
    whole = [bytes(range(100)), b"", b"z" * 31, b"1"]
    states = [tensors(*([b"-" * len(value) for value in whole] if rank in new else whole)) for rank in range(5)]
    root = 0 if new != [0] else 2
    with mock.patch.object(_transfer, "_BATCH_BYTES", 120):
        found = transfer(states, root)
    assert states == [tensors(*whole)] * 5
    assert [left for _, left, _ in found] == [[False] * 4] * 5
    total = sum(map(len, whole)) * len(new)
    sent = [count for _, _, count in found]
    assert sum(sent) == total
    assert all(count <= total / (5 - len(new)) + 4 for count in sent), "each of them sends the same part"
    assert all(sent[rank] == 0 for rank in new)


def test_tensors_of_other_kinds_are_left_for_a_broadcast_which_refuses_them() -> None:
    kinds = mock.patch.object(Transfer, "_digest", lambda self, tensor: _transfer.digest(str(len(tensor)), tensor))
    with kinds:
        states = [tensors(b"weight", b"bias") for _ in range(5)]
        states[3][0] += b"s"
        assert transfer(states) == [([[1, 2, 3, 4], []], [True, False], 0)] * 5


def test_many_new_ranks_get_a_broadcast() -> None:
    states = [tensors(b"weight") if rank == 0 else tensors(b"------") for rank in range(4)]
    assert transfer(states) == [([[1, 2, 3]], [True], 0)] * 4


def test_jobs_that_are_not_elastic_make_no_digest() -> None:
    with mock.patch.object(_transfer, "digest") as digest:
        assert transfer([tensors(b"weight")] * 3, 1, is_elastic=False) == [([[0, 2]], [True], 0)] * 3
        assert transfer([tensors(b"weight")]) == [([[]], [False], 0)]
        assert transfer([[], [], []]) == [([], [], 0)] * 3
    digest.assert_not_called()


def test_kinds_are_told_apart() -> None:
    assert len({_transfer.digest(kind, b"") for kind in ("float32(0,)", "int32(0,)", "float32(0, 1)")}) == 3


@pytest.mark.parametrize("case", case_names("torch.sync_cases"))
@pytest.mark.parametrize("np", [2, 3, 4])
def test_states_of_torch(np: int, case: str) -> None:
    pytest.importorskip("torch")
    check_case("torch.sync_cases", np, case, ("--elastic", "1:", "--net-shared-memory", "off"))
