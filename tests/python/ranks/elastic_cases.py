"""Samples that ElasticSampler gives to each rank."""

from __future__ import annotations

import math
from unittest import mock

import pytest
from torch.utils.data import DataLoader

import sirtaki
import sirtaki.torch as hvd


def _everybodys(sampler: hvd.elastic.ElasticSampler) -> list[int]:
    return [index for rows in hvd.allgather_object(list(sampler)) for index in rows]


def case_an_epoch_has_every_sample() -> None:
    for count in (0, 1, 7, 12, 100):
        for shuffle in (False, True):
            sampler = hvd.elastic.ElasticSampler(range(count), shuffle=shuffle)
            assert len(sampler) == math.ceil(count / hvd.size())
            assert len(list(sampler)) == len(sampler)
            seen = _everybodys(sampler)
            assert set(seen) == set(range(count))
            assert len(seen) - count < hvd.size()


def case_epochs_have_orders_of_their_own() -> None:
    sampler = hvd.elastic.ElasticSampler(range(100), seed=3)
    first = list(sampler)
    assert first == list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(hvd.elastic.ElasticSampler(range(100), seed=4)) != first
    assert hvd.size() > 1 or list(hvd.elastic.ElasticSampler(range(100), shuffle=False)) == list(range(100))


def case_what_is_done_does_not_come_again() -> None:
    sampler = hvd.elastic.ElasticSampler(range(50))
    done: set[int] = set()
    for batch, indices in enumerate(DataLoader(range(50), batch_size=3, sampler=sampler)):
        assert indices.tolist() == sampler.get_indices(batch, 3)
        if batch == 2:
            break
        done |= {index for rows in hvd.allgather_object(indices.tolist()) for index in rows}
        sampler.record_batch(batch, 3)
    assert sampler.processed_indices == done
    state = sampler.state_dict()
    assert state == sampler.gather_state() == {"epoch": 0, "processed_num": 6 * hvd.size()}
    by_indices = hvd.elastic.ElasticSampler(range(50))
    for batch in range(2):
        by_indices.record_indices(by_indices.get_indices(batch, 3))
    assert by_indices.state_dict() == state
    with pytest.raises(sirtaki.InvalidArgumentError, match="in the order in which the sampler gives"):
        by_indices.record_indices(by_indices.get_indices(0, 3))
    later = hvd.elastic.ElasticSampler(range(50))
    later.load_state_dict(state)
    assert set(_everybodys(later)) == set(range(50)) - done
    later.record_batch(0, 50)
    later.reset()
    assert later.processed_indices == set(range(50))
    assert len(later) == 0
    assert list(later) == []
    later.set_epoch(1)
    assert set(_everybodys(later)) == set(range(50))


def case_a_lost_rank_takes_no_sample_with_it() -> None:
    """Deals batches to four ranks, then to the three that are left, and compares what all of them were given."""

    def deal(size: int, state: dict[str, int], batches: int) -> tuple[list[int], dict[str, int]]:
        given: list[int] = []
        for rank in range(size):
            with mock.patch("sirtaki.basics.size", return_value=size), mock.patch("sirtaki.basics.rank") as place:
                place.return_value = rank
                sampler = hvd.elastic.ElasticSampler(range(100), seed=5)
                sampler.load_state_dict(state)
            for batch in range(batches):
                given += sampler.get_indices(batch, 4)
                sampler.record_batch(batch, 4)
        return given, sampler.state_dict()

    first, state = deal(4, {"epoch": 3, "processed_num": 0}, 3)
    second, state = deal(3, state, 2)
    rest, state = deal(1, state, 7)
    assert sorted([*first, *second, *rest]) == list(range(100))
    assert state == {"epoch": 3, "processed_num": 100}


def case_the_rest_goes_to_the_ranks_there_are() -> None:
    state = {"epoch": 2, "processed_indices": set(range(0, 40, 2))}
    for size in (1, 2, 5, 30):
        seen: list[int] = []
        for rank in range(size):
            with mock.patch("sirtaki.basics.size", return_value=size), mock.patch("sirtaki.basics.rank") as place:
                place.return_value = rank
                sampler = hvd.elastic.ElasticSampler(range(40))
                sampler.load_state_dict(state)
            assert (sampler.rank, sampler.num_replicas) == (rank, size)
            assert len(list(sampler)) == math.ceil(20 / size)
            seen += list(sampler)
        assert set(seen) == set(range(1, 40, 2))
