"""Local updates in an elastic state, in one process with a runtime that only pretends to merge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import sirtaki.torch as hvd  # noqa: E402
from sirtaki import _growth, _notice, basics  # noqa: E402
from sirtaki.elastic import loop  # noqa: E402
from sirtaki.elastic._transfer import Transfer  # noqa: E402
from sirtaki.errors import InvalidArgumentError, RanksChangedError  # noqa: E402
from sirtaki.local_updates import without_warmup  # noqa: E402
from sirtaki.torch._optimizer import elastic_models  # noqa: E402
from sirtaki.torch.elastic import TorchState  # noqa: E402
from sirtaki.torch.elastic import state as states  # noqa: E402


class Merging:
    """Local updates of the runtime with a merge in flight."""

    def __init__(self) -> None:
        self.closed = self.drained = False

    def step(self, *_: Any) -> tuple[Any, ...]:
        return False, False, False, -1, 0, 4, 2, False

    def save(self) -> bytes:
        raise InvalidArgumentError("merges are in flight")

    def drain(self) -> tuple[Any, ...]:
        self.drained = True
        return self.step()

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def elastic_job() -> Iterator[None]:
    """Makes this process the only rank of a job that counts as elastic."""
    hvd.init()
    with mock.patch("sirtaki.basics.is_elastic", return_value=True):
        yield
    hvd.shutdown()


class ToAll(Transfer):
    """Leaves everything for broadcasts."""

    def lacking(self, tensors: Any, root: int) -> Any:
        """Returns that one rank lacks all tensors."""
        return [[1 - root]] * len(tensors)

    def deliver(self, tensors: Any, wanted: Any) -> Any:
        """Delivers nothing."""
        return [True] * len(tensors)


class Job:
    """A training in which merges are in flight from the second step on."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        plain = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.5)
        self.optimizer = hvd.DistributedOptimizer(plain, self.model.named_parameters(), local_updates=4)
        self.local = self.optimizer._sirtaki_local
        self.state = TorchState(self.model, self.optimizer, step=0)
        self.runtime = Merging()
        self.step()
        self.local._local = self.runtime

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 2)).sum().backward()
        self.optimizer.step()
        self.state.step += 1

    @property
    def weight(self) -> Any:
        return self.model[0].weight.detach().clone()


def test_a_commit_needs_no_drain_and_a_loss_gives_merges_up() -> None:
    job = Job()
    job.step()
    with pytest.raises(InvalidArgumentError, match="in flight"):
        job.optimizer.state_dict()
    job.state.commit()
    committed = job.weight
    job.step()
    assert (job.local._steps, job.local._steps_since_drain) == (3, 2)
    basics.abandon()
    assert job.runtime.closed
    job.state.restore()
    assert torch.equal(job.weight, committed)
    assert (job.local._steps, job.local._steps_since_drain) == (2, 1)
    assert not job.optimizer._sirtaki.alone, "the first step of the next session averages gradients"


def test_buffers_are_found_again_in_the_next_session() -> None:
    job = Job()
    assert job.local._hook is None, "models are found before the first step"
    basics.abandon()
    job.model(torch.randn(4, 2))
    assert len(job.local._buffers()) == 3  # mean, variance and count
    job.step()
    assert job.local._hook is None


@pytest.mark.parametrize(
    ("rows", "differ"),
    [
        ([[0, 0, 1], [0, 0, 1]], False),  # the beginning of a job
        ([[7, 0, 1], [7, 0, 1]], False),  # averaged gradients
        ([[7, 2, 1], [0, 0, 1]], False),  # rank 0 and a new rank: no need of a mean
        ([[7, 2, 1], [6, 1, 1]], True),
        ([[0, 0, 1], [6, 1, 1]], True),
        ([[7, 2, 0], [6, 1, 1]], True),  # the model of rank 0 is not finite
    ],
)
def test_models_that_differ_by_steps_become_their_mean(rows: list[list[int]], differ: bool) -> None:
    job = Job()
    with (
        mock.patch.object(job.local, "rows", rows),
        mock.patch.object(elastic_models, "_average") as average,
        mock.patch.object(elastic_models, "broadcast_parameters") as broadcast,
    ):
        elastic_models.sync_model(job.model, ToAll())
    assert average.called == differ
    assert ("0.weight" in broadcast.call_args.args[0]) != differ
    assert "1.num_batches_tracked" in broadcast.call_args.args[0]
    if differ:
        parts = [rank for rank, (steps, _, finite) in enumerate(rows) if steps and finite]
        assert all(call.args[1:] == (0 in parts, len(parts)) for call in average.call_args_list)
        tensors = [tensor for call in average.call_args_list for tensor in call.args[0]]
        assert len(tensors) == 2 + 4  # sums of the buffers, and the parameters


def test_a_state_is_in_order_again_when_all_ranks_have_it() -> None:
    job = Job()
    job.step()
    job.local._called[0] = (job.model, True)
    rows = [{job.local.name: [9, 0, 1]}, {job.local.name: [2, 1, 1]}]
    with (
        mock.patch.object(basics, "size", return_value=2),
        mock.patch.object(elastic_models, "allgather_object", return_value=rows),
        mock.patch.object(states, "sync_model"),
        mock.patch.object(states, "sync_optimizer"),
    ):
        job.state.sync()
    assert (job.local._steps, job.local._steps_since_drain) == (9, 0)
    assert job.runtime.closed, "merges in flight are of other models"
    assert not job.local._called, "a new rank may have called its model before"


def test_a_rank_that_does_not_count_gives_nothing_to_others() -> None:
    job = Job()
    assert job.local.row() == [1, 0, 1]
    for momentum in job.optimizer.state.values():
        momentum["momentum_buffer"].fill_(torch.nan)
    assert job.local.row() == [1, 0, 0], "its first step would spoil the model"
    with (
        mock.patch.object(job.local, "rows", [[7, 2, 0], [6, 1, 1], [6, 1, 1]]),
        mock.patch.object(elastic_models, "_average"),
        mock.patch.object(elastic_models, "broadcast_parameters") as rest,
        mock.patch.object(elastic_models, "share_state") as optimizer,
        mock.patch.object(basics, "size", return_value=3),
    ):
        elastic_models.sync_optimizer(job.optimizer, ToAll())
        elastic_models.sync_model(job.model, ToAll())
    assert (optimizer.call_args.args[1], rest.call_args.args[1]) == (1, 1)


def test_a_training_that_a_new_rank_does_not_have_is_that_of_rank_0() -> None:
    job = Job()
    rows = [{job.local.name: [9, 2, 1]}, {}]
    two = mock.patch.object(basics, "size", return_value=2)
    with two, mock.patch.object(elastic_models, "allgather_object", return_value=rows):
        elastic_models.begin_sync()
    assert job.local.rows == []


def test_all_ranks_merge_before_one_leaves() -> None:
    for leaves, agreed in ((True, True), (False, True), (True, False)):
        job = Job()
        job.step()
        with (
            mock.patch.object(_notice._state, "asked", leaves),
            mock.patch.object(_growth._state, "change", 7 if agreed else 0),
        ):
            _growth.prepare_change()
        assert job.runtime.drained == (leaves and agreed)
        job.local.models_equal()
        job.local.close()


def test_ranks_merge_only_what_all_of_them_train() -> None:
    job = Job()
    job.step()
    everywhere = [(True, [job.local.name]), (False, [])]
    exchanged = mock.patch.object(elastic_models, "allgather_object", return_value=everywhere)
    with exchanged, mock.patch.object(_growth._state, "change", 7):
        _growth.prepare_change()
    assert not job.runtime.drained, "the other rank would not take part"
    job.local.models_equal()


def test_a_loss_in_that_merge_goes_back_to_the_commit() -> None:
    job = Job()
    job.state.commit()
    committed = job.weight
    job.step()

    def drain() -> tuple[Any, ...]:
        job.model[0].weight.detach().fill_(7)  # sums of some ranks
        raise RanksChangedError("rank 1 was lost")

    job.runtime.drain = drain  # type: ignore[method-assign]
    with mock.patch.object(_notice._state, "asked", True), mock.patch.object(_growth._state, "change", 7):
        loop._end_session(job.state)
    assert torch.equal(job.weight, committed)
    job.state.restore()
    assert torch.equal(job.weight, committed), "nothing is saved"
    assert job.runtime.closed


def test_steps_do_not_survive_a_loss_outside_of_the_loop() -> None:
    job = Job()
    assert not job.optimizer._sirtaki.bears_losses()
    plain = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)
    assert hvd.DistributedOptimizer(plain)._sirtaki.bears_losses()


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ("8", "8"),
        ("callable", "callable"),
        ("auto", "auto:warmup=0"),
        ("auto:compress=on", "auto:compress=on,warmup=0"),
        ("fixed:steps=8,warmup=100,delay=2", "fixed:steps=8,delay=2,warmup=0"),
        ("8:warmup=auto", "8:warmup=0"),
    ],
)
def test_a_warmup_does_not_come_again(interval: str, expected: str) -> None:
    assert without_warmup(interval) == expected
    if expected != "callable":
        hvd.LocalUpdates(interval)
        basics._core.check_interval(expected)
