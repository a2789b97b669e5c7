"""Elastic training in one process: the loop, states, samplers and optimizers, with a runtime that only pretends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import sirtaki  # noqa: E402
import sirtaki.torch as hvd  # noqa: E402
from sirtaki import _growth, basics, elastic, process_sets  # noqa: E402
from sirtaki.errors import MismatchError, RanksChangedError, StuckError  # noqa: E402
from sirtaki.ops import Ops  # noqa: E402
from sirtaki.torch.elastic import TorchState  # noqa: E402
from sirtaki.torch.elastic import state as states  # noqa: E402
from sirtaki.torch.elastic.state import StateHandler, snapshot  # noqa: E402

LOST = RanksChangedError("rank 1 was lost")


@pytest.fixture
def elastic_job(session: None) -> Iterator[mock.Mock]:
    """Yields a stand-in for the regroup() of the runtime, in a job that counts as elastic."""
    elastic_option = mock.patch("sirtaki.basics.is_elastic", return_value=True)
    unchanged = mock.patch.object(_growth._state, "change", 0)
    with elastic_option, unchanged, mock.patch("sirtaki._core.regroup", create=True) as regroup:
        yield regroup


class Recorded(elastic.State):
    """Records the calls of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.sync_errors: list[Exception] = []

    def save(self) -> None:
        self.calls.append("save")

    def restore(self) -> None:
        self.calls.append("restore")

    def sync(self) -> None:
        self.calls.append("sync")
        if self.sync_errors:
            raise self.sync_errors.pop(0)

    def reset(self) -> None:
        self.calls.append("reset")


def failing(*errors: Exception, commit: bool = False) -> Any:
    """Returns a training function that raises these errors, one a call, and then returns its arguments."""
    left = list(errors)

    def train(state: elastic.State, *args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop(0)
        return args, kwargs

    def train_and_commit(state: elastic.State, *args: Any, **kwargs: Any) -> Any:
        state.commit()
        return train(state, *args, **kwargs)

    return train_and_commit if commit else train


def test_a_loss_leads_back_to_the_commit_then_to_the_next_session(elastic_job: mock.Mock) -> None:
    state = Recorded()
    state.register_reset_callbacks([lambda: state.calls.append("callback")])
    elastic_job.side_effect = lambda: state.calls.append("regroup")
    generation = basics.generation()
    assert elastic.run(failing(LOST, LOST))(state, 7, key="x") == ((7,), {"key": "x"})
    again = ["restore", "regroup", "reset", "callback", "sync"]
    assert state.calls == ["sync", *again, *again]
    assert basics.generation() == generation + 2
    assert basics.first_generation() == generation


def test_a_loss_during_sync_is_a_loss(elastic_job: mock.Mock) -> None:
    state = Recorded()
    state.sync_errors = [LOST]
    elastic.run(failing())(state)
    assert state.calls == ["sync", "restore", "reset", "sync"]


def test_a_loss_during_a_reset_callback_is_a_loss(elastic_job: mock.Mock) -> None:
    state, errors = Recorded(), [LOST]

    def callback() -> None:
        if errors:
            raise errors.pop()

    state.register_reset_callbacks([callback])
    elastic.run(failing(LOST))(state)
    assert state.calls == ["sync", "restore", "reset", "restore", "reset", "sync"]


def test_operations_of_a_reset_callback_that_new_ranks_do_not_make_name_the_rule(elastic_job: mock.Mock) -> None:
    state = Recorded()
    state.register_reset_callbacks([mock.Mock(side_effect=StuckError("all wait"))])
    with pytest.raises(StuckError, match=r"^all wait; a reset callback may make steps only if .* new ranks make them"):
        elastic.run(failing(LOST))(state)
    assert state.calls == ["sync", "restore", "reset", "restore", "reset"]


def test_a_loss_during_sync_leaves_the_commit_whole(session: None) -> None:
    sampler = hvd.elastic.ElasticSampler(range(8))
    state = TorchState(model=torch.nn.Linear(1, 1), sampler=sampler, epoch=0)

    def of_rank_0(saved: dict[str, Any]) -> dict[str, Any]:
        return {**saved, "epoch": 1}

    with (
        mock.patch.object(states, "broadcast_object", of_rank_0),
        mock.patch.object(state, "_bcast_object", side_effect=LOST),
        pytest.raises(RanksChangedError),
    ):
        state.sync()
    assert sampler.epoch == 1
    state.restore()
    assert sampler.epoch == state.epoch == 0


def test_derived_states_may_set_attributes_first(session: None) -> None:
    class Mine(TorchState):
        def __init__(self) -> None:
            self.mine = 1
            super().__init__(model=torch.nn.Linear(1, 1))

    assert Mine().mine == 1


def test_gradients_of_a_step_that_failed_are_void(session: None) -> None:
    model = torch.nn.Linear(1, 1)
    state = TorchState(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    model(torch.ones(1, 1)).sum().backward()
    state.restore()
    assert all(p.grad is None for p in model.parameters())


def test_other_shared_errors_are_tried_once_between_commits(elastic_job: mock.Mock) -> None:
    error = MismatchError("shapes differ")
    elastic.run(failing(error, commit=True))(Recorded())
    elastic.run(failing(error, error, commit=True))(Recorded())
    with pytest.raises(MismatchError):
        elastic.run(failing(error, LOST, error))(Recorded())
    assert elastic_job.call_count == 5


def test_other_errors_and_jobs_that_are_not_elastic_end(elastic_job: mock.Mock) -> None:
    with pytest.raises(KeyError):
        elastic.run(failing(KeyError("mine")))(Recorded())
    with mock.patch("sirtaki.basics.is_elastic", return_value=False):
        state = Recorded()
        with pytest.raises(RanksChangedError):
            elastic.run(failing(LOST))(state)
        assert state.calls == ["sync"]
        with pytest.raises(NotImplementedError, match="--elastic MIN:"):
            basics.regroup()
    elastic_job.assert_not_called()


def test_an_interrupt_by_the_program_keeps_what_was_done(elastic_job: mock.Mock) -> None:
    state = Recorded()
    elastic.run(failing(elastic.HostsUpdatedInterrupt()))(state)
    assert state.calls == ["sync", "reset", "sync"]


def test_ranks_that_join_interrupt_a_commit_and_nothing_is_restored(elastic_job: mock.Mock) -> None:
    state = Recorded()
    state.register_reset_callbacks([lambda: state.calls.append("callback")])
    calls = []

    def train(state: elastic.State) -> int:
        calls.append(basics._state.loops)
        state.commit()
        return len(calls)

    def regroup_at(change: int) -> None:
        state.calls.append(f"regroup for {change}")

    growth = mock.patch("sirtaki._core.growth", side_effect=[(True, False, 7), (True, False, 0)])
    with growth, mock.patch("sirtaki._core.regroup_at", regroup_at), mock.patch("sirtaki._core.admit") as admit:
        assert elastic.run(train)(state) == 2
    assert state.calls == ["sync", "save", "save", "regroup for 7", "reset", "callback", "sync", "save"]
    assert [call.args for call in admit.call_args_list] == [(True,), (True,), (False,)]
    elastic_job.assert_not_called()


def test_a_new_rank_that_is_lost_in_sync_costs_no_step(elastic_job: mock.Mock) -> None:
    state = elastic.ObjectState(lambda value: value, step=0)
    entries = []

    def train(state: Any) -> None:
        entries.append(state.step)
        state.sync = mock.Mock(side_effect=[LOST, None])
        state.step += 1
        state.check_host_updates()

    growth = mock.patch("sirtaki._core.growth", side_effect=[(True, False, 7), (True, False, 0)])
    with growth, mock.patch("sirtaki._core.regroup_at"), mock.patch("sirtaki._core.admit"):
        elastic.run(train)(state)
    assert entries == [0, 1]
    elastic_job.assert_called_once()


def test_only_the_first_loop_of_a_program_takes_new_ranks(elastic_job: mock.Mock) -> None:
    with mock.patch("sirtaki._core.admit") as admit:
        for _ in range(2):
            elastic.run(failing(LOST))(Recorded())
    assert [call.args for call in admit.call_args_list] == [(True,), (True,), (False,), *[(False,)] * 3]


def test_a_loss_in_a_check_for_ranks_that_join_is_a_loss(elastic_job: mock.Mock) -> None:
    state = Recorded()
    state._bcast_object = mock.Mock(side_effect=[LOST, 0])
    with mock.patch("sirtaki._core.growth", return_value=(True, False, 0)), mock.patch("sirtaki._core.admit"):
        elastic.run(lambda state: state.check_host_updates())(state)
    assert state.calls == ["sync", "restore", "reset", "sync"]
    state.check_host_updates()  # nobody joins a program that is not in elastic.run()


def test_a_new_rank_communicates_in_elastic_run_only(session: None) -> None:
    with mock.patch.object(_growth._state, "fresh", True):
        with pytest.raises(NotImplementedError, match="has joined a running job"):
            hvd.allreduce(torch.ones(1))
        with pytest.raises(NotImplementedError, match="has joined a running job"):
            hvd.join()
        elastic.run(lambda state: hvd.allreduce(torch.ones(1)))(Recorded())


def test_only_a_process_that_never_had_a_session_ends_without_an_error_when_it_gets_none() -> None:
    options = mock.patch("sirtaki.basics.option", lambda name: "4" if name == "elastic.max" else "0")
    ended = sirtaki.NotInitializedError("the job has come to its end")
    with options, mock.patch("sirtaki._core.init", side_effect=ended):
        with mock.patch.object(basics._state, "generation", 0), pytest.raises(SystemExit) as exit_:
            basics.open_session(None, {})
        assert exit_.value.code == 0
        with mock.patch.object(basics._state, "generation", 1), pytest.raises(sirtaki.NotInitializedError):
            basics.open_session(None, {})


def test_a_regroup_that_fails_ends_the_session(elastic_job: mock.Mock) -> None:
    elastic_job.side_effect = sirtaki.PeerLostError("too few ranks: 1 of at least 2 (elastic.min)")
    ended = mock.Mock()
    with mock.patch.object(basics._state, "on_shutdown", [ended]):
        with pytest.raises(sirtaki.PeerLostError, match="too few"):
            basics.regroup()
        ended.assert_not_called()
        with mock.patch("sirtaki._core.is_initialized", return_value=False), pytest.raises(sirtaki.PeerLostError):
            basics.regroup()
        ended.assert_called_once()


def test_values_are_copied_by_commit_and_restore(session: None) -> None:
    state = elastic.ObjectState(history=[1], epoch=0)
    state.history.append(2)
    state.epoch = 1
    state.restore()
    assert (state.history, state.epoch) == ([1], 0)
    state.history.append(3)
    state.commit()
    state.history.append(4)
    state.restore()
    state.history.append(5)
    state.restore()
    assert state.history == [1, 3]
    state.epoch = 9
    state.sync()
    state.epoch = 10
    state.restore()
    assert state.epoch == 9
    with pytest.raises(ValueError, match="the value generator of an elastic state cannot be copied"):
        elastic.ObjectState(generator=(i for i in range(3)))


def test_torch_state_restores_its_objects_in_place(session: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0, momentum=0.9))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    sampler = hvd.elastic.ElasticSampler(range(20))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    objects = {"scheduler": scheduler, "sampler": sampler, "scaler": scaler}
    state = TorchState(model, optimizer, batch=0, **objects)

    def train() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 3)).exp().sum().backward()  # a plain sum has no gradient behind the normalization
        optimizer.step()
        scheduler.step()
        sampler.record_batch(state.batch, 4)
        state.batch += 1

    train()
    state.commit()
    committed = snapshot([model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), sampler.state_dict()])
    train()
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0})
    assert not torch.equal(model[0].weight, committed[0]["0.weight"])
    for _ in range(2):
        state.restore()
        torch.testing.assert_close(model.state_dict(), committed[0], rtol=0, atol=0)
        torch.testing.assert_close(optimizer.state_dict(), committed[1], rtol=0, atol=0)
        assert (scheduler.state_dict(), sampler.state_dict(), state.batch) == (*committed[2:], 1)
        assert (state.model, state.optimizer, state.scaler) == (model, optimizer, scaler)
        assert scaler.get_scale() == 8.0
        train()
    state.sync()
    assert state.batch == 2
    state.restore()
    assert (state.batch, sampler.processed_num) == (2, 8)


def test_a_replaced_object_is_handled_from_then_on(session: None) -> None:
    state = TorchState(model=torch.nn.Linear(1, 1))
    assert state.optimizer is None
    state.model = torch.nn.Linear(2, 2)
    before = state.model.weight.detach().clone()
    torch.nn.init.zeros_(state.model.weight)
    state.restore()
    assert torch.equal(state.model.weight, before)


def test_programs_may_register_handlers(session: None) -> None:
    class Counter:
        def __init__(self) -> None:
            self.value = 0

    class CounterHandler(StateHandler):
        def __init__(self, value: Counter) -> None:
            super().__init__(value)
            self.save()

        def save(self) -> None:
            self._saved = self.value.value

        def restore(self) -> None:
            self.value.value = self._saved

    known = list(states.get_handler_registry())
    states.set_handler_registry([(Counter, CounterHandler), *known])
    try:
        counter = Counter()
        state = TorchState(counter=counter)
        counter.value = 3
        state.restore()
        assert state.counter is counter
        assert counter.value == 0
    finally:
        states.set_handler_registry(known)


def test_a_commit_uses_the_memory_of_the_one_before() -> None:
    value = {"a": [torch.ones(2), (torch.zeros(1), "text")], "b": {"c": torch.ones(1, dtype=torch.int64)}}
    first = snapshot(value)
    place = first["a"][0].data_ptr(), first["b"]["c"].data_ptr()
    value["a"][0] += 1
    second = snapshot(value, first)
    assert (second["a"][0].data_ptr(), second["b"]["c"].data_ptr()) == place
    assert second["a"][0].tolist() == [2.0, 2.0]
    assert second["a"][1] == (torch.zeros(1), "text")
    grown = snapshot({**value, "a": [torch.ones(3), (torch.zeros(1), "text")]}, second)
    assert grown["a"][0].tolist() == [1.0, 1.0, 1.0]


def test_an_optimizer_leaves_a_step_in_flight(elastic_job: mock.Mock) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), sync="step")
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="between backward"):
        optimizer.zero_grad()
    basics.regroup()
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_process_sets_of_other_numbers_are_refused(elastic_job: mock.Mock) -> None:
    kept = hvd.add_process_set([0])
    hvd.allreduce(torch.ones(1), process_set=kept)
    basics.regroup()
    assert hvd.get_process_set_ids_and_ranks() == {0: [0]}
    for call in (kept.included, kept.rank, lambda: hvd.allreduce(torch.ones(1), process_set=kept)):
        with pytest.raises(ValueError, match="before a rank was lost"):
            call()
    assert process_sets.ProcessSet([0]).rank() == 0
    hvd.allreduce(torch.ones(1))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sync": "forward"}, 'use sync="backward"'),
        ({"gradient_predivide_factor": 2.0}, "number of ranks"),
    ],
)
def test_what_does_not_survive_a_loss_is_refused(elastic_job: mock.Mock, options: dict[str, Any], text: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    with pytest.raises(NotImplementedError, match=text):
        hvd.DistributedOptimizer(optimizer, **options)


def test_a_commit_waits_for_an_announced_change_that_the_program_has_seen(elastic_job: mock.Mock) -> None:
    state = elastic.ObjectState()
    on_their_way = mock.patch("sirtaki._core.changes_announced", side_effect=[1, 1, 1, 0, 0])
    wanted = mock.patch("sirtaki._growth.change_wanted", side_effect=lambda: 0)
    with on_their_way as announced, wanted:
        state.commit()
        assert announced.call_count == 0, "without a question a commit takes what there is"
        assert not state._host_messages.empty()
        state.commit()
        assert announced.call_count == 4
        assert state._host_messages.empty()


def test_messages_about_hosts_stay_until_the_next_commit(elastic_job: mock.Mock) -> None:
    state = elastic.ObjectState()
    with mock.patch("sirtaki._core.changes_announced", side_effect=[1, 0, 0, 0]):
        assert not state._host_messages.empty()
        assert not state._host_messages.empty(), "the process has arrived, and the program has not joined it yet"
        with mock.patch("sirtaki._growth.change_wanted", return_value=0):
            state.commit()
        assert state._host_messages.empty()


@pytest.mark.parametrize("kind", [elastic.ObjectState, TorchState])
def test_a_rank_that_waits_in_a_commit_can_name_it(elastic_job: mock.Mock, kind: type[elastic.State]) -> None:
    state = kind()
    sent = mock.patch.object(Ops, "broadcast", autospec=True, side_effect=Ops.broadcast)
    two_ranks, nobody = mock.patch.object(basics, "size", return_value=2), mock.patch("sirtaki._growth.change_wanted")
    with sent as broadcast, two_ranks, nobody as wanted:
        wanted.return_value = 0
        state.commit()
    assert [call.args[3] for call in broadcast.call_args_list] == ["state.commit().bytes", "state.commit().object"]


def test_a_commit_waits_for_an_announced_change_with_a_line_and_not_for_ever(
    elastic_job: mock.Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    state, now = elastic.ObjectState(), [0.0]

    def passes(seconds: float) -> None:
        now[0] += seconds
        assert now[0] < 700, "the commit waits for ever"

    clock = mock.patch("sirtaki.elastic.state.time", monotonic=lambda: now[0], sleep=mock.Mock(side_effect=passes))
    announced = mock.patch("sirtaki._core.changes_announced", return_value=2)
    with clock as time, announced, mock.patch("sirtaki._growth.change_wanted", return_value=7):
        assert not state._host_messages.empty()
        with pytest.raises(elastic.HostsUpdatedInterrupt):
            state.commit()
    assert 600 <= now[0] < 601, "the time that the launcher gives a process to join"
    assert time.sleep.call_count < 1300
    assert capsys.readouterr().err == (
        "sirtaki: rank 0 waits in state.commit() for processes that the launcher has started or asked to leave (2); "
        "look at their output\n"
    )


def test_a_message_about_hosts_is_over_behind_a_commit_that_is_not_collective(elastic_job: mock.Mock) -> None:
    state = elastic.ObjectState()
    with mock.patch("sirtaki._core.changes_announced", side_effect=[1, 0]):
        assert not state._host_messages.empty()
        state.commit()
        assert state._host_messages.empty()
