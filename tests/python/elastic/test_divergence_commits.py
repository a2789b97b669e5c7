"""Commits of a TorchState that compare it with other ranks, in one process with ranks that only pretend."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import sirtaki.torch as hvd  # noqa: E402
from sirtaki import basics, elastic  # noqa: E402
from sirtaki.errors import MismatchError, RanksChangedError  # noqa: E402
from sirtaki.torch.elastic import TorchState  # noqa: E402
from sirtaki.torch.elastic._compared import row_major_bytes, write_bytes  # noqa: E402

LOST = RanksChangedError("rank 1 was lost")


pytestmark = pytest.mark.usefixtures("loop")


class StateOfOne(TorchState):
    """A state in a job of two ranks, of which this process is one and the other one does the same."""

    def __init__(self, how: str = "heal", **values: Any) -> None:
        super().__init__(**values)
        self.rows = mock.Mock(side_effect=lambda row: [row, row])
        self._comparison._ranks = mock.Mock(rows=self.rows)
        self._comparison.begin(how)


def made_state(**values: Any) -> StateOfOne:
    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    return StateOfOne(model=model, optimizer=optimizer, **values)


def test_a_commit_takes_the_change_of_ranks_from_the_row_of_rank_0() -> None:
    state = made_state()
    with (
        mock.patch.object(state, "_bcast_object") as sent,
        mock.patch("sirtaki._growth.change_wanted", return_value=7),
        mock.patch("sirtaki._growth.end_session_for"),
    ):
        state.rows.side_effect = lambda row: [[0, *row[1:]], row]
        state.commit()
        state.rows.side_effect = lambda row: [row, [0, *row[1:]]]
        with pytest.raises(elastic.HostsUpdatedInterrupt):
            state.commit()
        assert state.rows.call_count == 2
        assert [call.args[0][2] >= 0 for call in state.rows.call_args_list] == [True, True]
        with pytest.raises(elastic.HostsUpdatedInterrupt):
            state.check_host_updates()
        assert state.rows.call_args.args[0] == [7, mock.ANY, -1, 0], "there is no commit to compare"
    sent.assert_not_called()


def test_where_no_rank_may_join_or_leave_only_commits_exchange() -> None:
    with mock.patch("sirtaki._growth.change_wanted", return_value=None):
        state = made_state()
        state.check_host_updates()
        state.rows.assert_not_called()
        state.commit()
        state.rows.assert_called_once()
        state.optimizer = torch.optim.SGD(state.model.parameters(), 0.1)
        state._comparison._look_anew()
        state.commit()
        # Nothing is left to compare here, but another rank may wait for this one.
        assert state.rows.call_args.args[0] == [0, mock.ANY, -1, 0]


@pytest.mark.parametrize("how", ["off", "heal"])
def test_off_and_the_end_of_the_loop_compare_nothing(how: str) -> None:
    state = made_state(how=how)
    loops = basics._state.loops if how == "off" else 0
    with (
        mock.patch.object(basics._state, "loops", loops),
        mock.patch("sirtaki._growth.change_wanted", return_value=0),
        mock.patch.object(state, "_bcast_object", return_value=0) as sent,
    ):
        state.commit()
        state.rows.assert_not_called()
        assert sent.call_count == 1
    with mock.patch("sirtaki._growth.change_wanted", return_value=None):
        made_state(how="off").commit()


def test_sync_turns_comparisons_on_in_elastic_jobs_alone() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    state = TorchState(model=model, optimizer=optimizer)
    for is_elastic, size, is_on in ((False, 2, False), (True, 1, False), (True, 2, True)):
        with (
            mock.patch("sirtaki.elastic._compared_state.is_elastic", return_value=is_elastic),
            mock.patch("sirtaki.elastic._compared_state.size", return_value=size),
        ):
            state.sync()
        assert state._comparison.is_on == is_on


def test_a_commit_that_was_healed_is_the_one_that_is_kept_and_written() -> None:
    state = made_state()
    weight, written = state.model.weight, []
    right = weight.detach().clone()

    def heal(change: int) -> tuple[int, bool]:
        written.append("healed")
        write_bytes(weight.detach(), row_major_bytes(right))
        return 0, True

    state._snapshots = mock.Mock()
    state._snapshots.committed = lambda: written.append(state._hand_over()["objects"]["model"]["weight"].clone())
    weight.data.add_(1)
    with (
        mock.patch.object(state._comparison, "meet", heal),
        mock.patch("sirtaki._growth.change_wanted", return_value=0),
    ):
        state.commit()
    assert written[0] == "healed"
    assert torch.equal(written[1], right)
    weight.data.add_(1)
    state.restore()
    assert torch.equal(weight, right)


@pytest.mark.parametrize(
    ("error", "is_written"), [(elastic.HostsUpdatedInterrupt(), True), (MismatchError("differ"), False), (LOST, False)]
)
def test_a_commit_is_written_unless_ranks_may_differ(error: Exception, is_written: bool) -> None:
    state = made_state()
    state._snapshots = mock.Mock()
    with (
        mock.patch.object(state, "_exchange", side_effect=error),
        mock.patch("sirtaki._growth.change_wanted", return_value=0),
        pytest.raises(type(error)),
    ):
        state.commit()
    assert state._snapshots.committed.called == is_written


def test_an_error_that_ends_the_session_is_not_tried_again() -> None:
    def train(state: elastic.State) -> None:
        hvd.shutdown()
        raise MismatchError("ranks differ")

    state = elastic.ObjectState(lambda value: value)
    with (
        mock.patch("sirtaki.basics.is_elastic", return_value=True),
        mock.patch("sirtaki._core.regroup") as regroup,
        pytest.raises(MismatchError),
    ):
        elastic.run(train)(state)
    regroup.assert_not_called()
