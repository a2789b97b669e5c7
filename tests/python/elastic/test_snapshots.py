"""Snapshots of a job whose ranks are threads: writing, loading, and the costs of a slow disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from sirtaki import basics, elastic, errors
from sirtaki.elastic import _snapshots
from sirtaki.elastic._snapshot_file import Header, load
from sirtaki.elastic._snapshot_folder import Folder
from sirtaki.elastic._snapshots import Place, Snapshots

Result = TypeVar("Result")
LIMIT_SECONDS = 30


class Exchange:
    """Exchanges objects between threads, each of which is a rank."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks)
        self.values: list[Any] = [None] * ranks
        self.own = threading.local()

    def allgather_object(self, value: Any, name: str) -> list[Any]:
        self.values[self.own.rank] = value
        self.barrier.wait(LIMIT_SECONDS)
        values = list(self.values)
        self.barrier.wait(LIMIT_SECONDS)
        return values

    def broadcast_object(self, value: Any, root: int, name: str) -> Any:
        return self.allgather_object(value, name)[root]


class State(elastic.ObjectState):
    """State that is exchanged between threads."""

    def __init__(self, exchange: Exchange, **values: Any) -> None:
        super().__init__(lambda value: exchange.broadcast_object(value, 0, ""), **values)
        self.exchange = exchange
        self.forgotten = 0

    def _forget_loaded(self) -> None:
        self.forgotten += 1

    def _objects(self) -> Any:
        return self.exchange


class Job:
    """A job with a rank on each of `hosts`; the host tells the folder."""

    def __init__(self, hosts: list[str], folder_of: Callable[[str], Path], resume: str = "stop") -> None:
        self.hosts, self.folder_of, self.resume = hosts, folder_of, resume

    def run(self, train: Callable[[State, Snapshots], Result], **values: Any) -> list[Result]:
        """Calls train(state, snapshots) on all ranks behind a first sync()."""
        exchange = Exchange(len(self.hosts))

        def rank(number: int) -> Result:
            exchange.own.rank = number
            host = self.hosts[number]
            place = Place(number, self.hosts[:number].count(host), host, f"node-{host}")
            state = State(exchange, **(values or {"step": 0}))
            snapshots = Snapshots(
                state, Folder(str(self.folder_of(host))), 0.0, self.resume, place_of_rank=lambda: place
            )
            state._snapshots = snapshots
            try:
                snapshots.sync()
                return train(state, snapshots)
            finally:
                snapshots.close()

        size = mock.patch.object(basics, "size", return_value=len(self.hosts))
        with size, ThreadPoolExecutor(len(self.hosts)) as pool:
            ranks = [pool.submit(rank, number) for number in range(len(self.hosts))]
            results = [one.exception() or one.result() for one in ranks]
        # The same on all ranks, so none of them waits for others.
        assert len({str(one) for one in results if isinstance(one, Exception)}) <= 1
        for one in results:
            if isinstance(one, Exception):
                raise one
        return results  # type: ignore[return-value]


def step_of(state: State, _: Snapshots) -> int:
    return int(state.step)


def commit_to(step: int) -> Callable[[State, Snapshots], bool]:
    """Returns a training that commits up to `step` and returns whether its rank writes."""

    def train(state: State, snapshots: Snapshots) -> bool:
        while state.step < step:
            state.step += 1
            state.save()
            snapshots.committed()
            snapshots._wait()
        return snapshots._writes

    return train


def test_one_rank_of_each_host_writes_and_only_one_to_a_folder_that_hosts_share(tmp_path: Path) -> None:
    assert Job(["a", "a", "b", "b"], tmp_path.joinpath).run(commit_to(3)) == [True, False, True, False]
    assert [Folder(str(tmp_path / host)).numbers() for host in "ab"] == [[3, 2], [3, 2]]
    shared = tmp_path / "shared"
    assert Job(["a", "a", "b", "b"], lambda _: shared).run(commit_to(3)) == [True, False, False, False]
    assert Folder(str(shared)).numbers() == [3, 2]


def test_the_newest_snapshot_of_any_host_comes_to_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Job(["a", "b"], tmp_path.joinpath).run(commit_to(3))
    Job(["b"], tmp_path.joinpath, "yes").run(commit_to(5))
    with mock.patch.object(_snapshots, "_CHUNK_BYTES", 100):
        assert Job(["a", "b", "c"], tmp_path.joinpath, "yes").run(step_of) == [5, 5, 5]
    assert "goes on from commit 5, written" in capfd.readouterr().err
    # Rank 0 has a copy, and numbers go on everywhere.
    assert Folder(str(tmp_path / "a")).numbers() == [5, 3]
    Job(["a", "c"], tmp_path.joinpath, "auto").run(commit_to(6))
    assert [Folder(str(tmp_path / host)).numbers() for host in "ac"] == [[6, 5], [6]]


def test_a_checkpoint_of_the_program_gives_way_on_all_ranks(tmp_path: Path) -> None:
    def forgotten(state: State, _: Snapshots) -> int:
        return state.forgotten

    Job(["a"], tmp_path.joinpath).run(commit_to(3))
    assert Job(["a", "a", "c"], tmp_path.joinpath, "yes").run(forgotten) == [1, 1, 1]
    assert Job(["a", "c"], tmp_path.joinpath, "no").run(forgotten) == [0, 0]


def test_a_job_does_not_begin_where_snapshots_are_without_being_told(tmp_path: Path) -> None:
    Job(["b"], tmp_path.joinpath).run(commit_to(4))
    with pytest.raises(ValueError, match=r"up to commit 4\. To go on .*-resume yes; to begin anew .*-resume no"):
        Job(["a", "b"], tmp_path.joinpath).run(step_of)


def test_a_training_that_begins_anew_replaces_snapshots_by_newer_ones(tmp_path: Path) -> None:
    Job(["a"], tmp_path.joinpath).run(commit_to(4))
    assert Job(["a"], tmp_path.joinpath, "no").run(commit_to(1)) == [True]
    assert Folder(str(tmp_path / "a")).numbers() == [5, 4]
    assert Job(["a"], tmp_path.joinpath, "yes").run(step_of) == [1]
    (tmp_path / "a" / "snapshot-000000000005").write_text("torn")
    with pytest.raises(ValueError, match="has no snapshot that can be read"):
        Job(["a"], tmp_path.joinpath, "yes").run(step_of)


def test_a_training_that_began_anew_is_not_followed_by_an_old_one(tmp_path: Path) -> None:
    Job(["a"], tmp_path.joinpath).run(commit_to(4))
    Job(["a"], tmp_path.joinpath, "no").run(step_of)  # lost before its first snapshot
    with pytest.raises(ValueError, match="has no snapshot that can be read"):
        Job(["a", "b"], tmp_path.joinpath, "auto").run(step_of)


def test_a_job_does_not_choose_between_trainings(tmp_path: Path) -> None:
    Job(["a"], tmp_path.joinpath).run(commit_to(4))
    Job(["b", "c"], tmp_path.joinpath).run(commit_to(3))
    for resume in ("yes", "auto"):
        with pytest.raises(ValueError, match=r"of 2 trainings: commit 4, .* on node-a\); commit 3, .*Move those of"):
            Job(["a", "b", "c"], tmp_path.joinpath, resume).run(step_of)
    assert Job(["b", "c"], tmp_path.joinpath, "yes").run(step_of) == [3, 3]


def test_a_host_that_joins_keeps_snapshots_of_another_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def join(state: State, snapshots: Snapshots) -> bool:
        if snapshots._place.host == "b":
            assert snapshots._folder is not None
            snapshots._folder.release()
            snapshots._folder = Folder(str(tmp_path / "other"))
        snapshots.sync()
        return snapshots._writes

    Job(["other"], tmp_path.joinpath).run(commit_to(4))
    assert Job(["a", "b"], tmp_path.joinpath).run(join) == [True, False]
    assert (
        "other on node-b has snapshots of another training; move them away; this host writes" in capfd.readouterr().err
    )
    assert Job(["other"], tmp_path.joinpath, "yes").run(step_of) == [4]


def test_a_job_that_has_to_go_on_never_begins_anew(tmp_path: Path) -> None:
    assert Job(["a"], tmp_path.joinpath, "auto").run(step_of) == [0]
    with pytest.raises(ValueError, match="has no snapshot that can be read on any host"):
        Job(["a"], tmp_path.joinpath, "yes").run(step_of)
    (tmp_path / "a" / "snapshot-000000000007").write_text("torn")
    for resume in ("yes", "auto"):
        with pytest.raises(ValueError, match=f"elastic.resume is {resume}, .* look at the folder"):
            Job(["a", "b"], tmp_path.joinpath, resume).run(step_of)


def test_a_training_that_has_ended_goes_on_at_its_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def train(state: State, snapshots: Snapshots) -> int:
        begin = int(state.step)
        commit_to(3)(state, snapshots)
        state.step = 7  # steps behind the last commit count, too
        snapshots.end()
        return begin

    assert Job(["a", "a", "b"], tmp_path.joinpath).run(train) == [0, 0, 0]
    assert [Folder(str(tmp_path / host)).numbers() for host in "ab"] == [[4, 3], [4, 3]]
    with pytest.raises(ValueError, match=r"up to commit 4, with which a training has ended\. To go on from there"):
        Job(["a", "c"], tmp_path.joinpath).run(step_of)
    for number, resume in enumerate(("auto", "yes"), 4):
        assert Job(["a", "c"], tmp_path.joinpath, resume).run(train) == [7, 7]
        told = capfd.readouterr().err
        assert f"goes on from commit {number}, the end of its training, written" in told
        assert "; to train anew, add --elastic-resume no or choose another folder" in told
    # One that goes on with more steps has not ended.
    Job(["a"], tmp_path.joinpath, "yes").run(commit_to(9))
    assert "the end of its training" in capfd.readouterr().err
    with pytest.raises(ValueError, match=r"up to commit 8\. To go on"):
        Job(["a"], tmp_path.joinpath).run(step_of)
    assert Job(["a"], tmp_path.joinpath, "yes").run(step_of) == [9]
    assert "the end of its training" not in capfd.readouterr().err


def test_the_end_of_a_training_that_cannot_be_saved_is_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = elastic.ObjectState(lambda value: value, step=0)
    snapshots = alone(state, Folder(str(tmp_path)))
    state.commit()
    state.step = threading.Lock()  # which cannot be copied
    snapshots.end()
    snapshots.close()
    assert "commit 2 is not written" in capfd.readouterr().err
    assert Folder(str(tmp_path)).numbers() == [1]


def test_a_rank_that_leaves_does_not_replace_the_snapshot_of_the_next_writer(tmp_path: Path) -> None:
    state = elastic.ObjectState(lambda value: value, step=1)
    leaving = alone(state, Folder(str(tmp_path)), 60.0)
    state.commit()
    later = elastic.ObjectState(lambda value: value, step=1)
    writer = alone(later, Folder(str(tmp_path)))
    writer._training, writer._number = leaving._training, leaving._number
    later.step = 2
    later.commit()
    writer._wait()
    with pytest.raises(SystemExit), leaving.saving_at_the_end():
        raise SystemExit
    assert load(tmp_path / "snapshot-000000000002") == {"step": 2}
    # The next writer comes second: its next commit is due.
    state.step, later.step = 3, 4
    state.save()
    writer._every = 60.0
    with pytest.raises(SystemExit), leaving.saving_at_the_end():
        raise SystemExit
    assert Folder(str(tmp_path)).numbers() == [3, 2]
    writer._last = -1000.0
    for numbers in ([3, 2], [4, 3], [4, 3]):
        later.commit()
        writer._wait()
        assert Folder(str(tmp_path)).numbers() == numbers
    assert load(tmp_path / "snapshot-000000000003") == {"step": 3}
    assert load(tmp_path / "snapshot-000000000004") == {"step": 4}


def test_a_snapshot_of_another_training_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    Job(["a"], tmp_path.joinpath).run(commit_to(1))
    with pytest.raises(ValueError, match=r"snapshot-000000000001 does not fit this training: it has no epoch\. Start"):
        Job(["a", "b"], tmp_path.joinpath, "yes").run(step_of, step=0, epoch=0)


def test_a_folder_that_cannot_be_used_ends_the_job_at_its_start(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    with pytest.raises(ValueError, match=r"elastic.snapshot_dir \(.*/b on node-b\) cannot be used: .*File exists"):
        Job(["a", "b"], tmp_path.joinpath).run(step_of)


def test_a_folder_that_cannot_be_used_is_a_warning_in_a_running_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def lose_folder(state: State, snapshots: Snapshots) -> bool:
        snapshots._folder = Folder(str(tmp_path / "file")) if snapshots._place.host == "b" else snapshots._folder
        snapshots.sync()
        return snapshots._writes

    (tmp_path / "file").touch()
    assert Job(["a", "b"], tmp_path.joinpath).run(lose_folder) == [True, False]
    assert capfd.readouterr().err.count("this host writes no snapshots") == 1


class HeldFolder(Folder):
    """A folder on a disk that writes when it is told to."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.writes = threading.Event()

    def write(self, header: Header, state: Any, pickled_by: Any) -> bool:
        assert self.writes.wait(LIMIT_SECONDS)
        return super().write(header, state, pickled_by)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldFolder]:
    folder = HeldFolder(str(tmp_path))
    yield folder
    folder.writes.set()


def alone(state: Any, folder: Folder, every: float = 0.0, clock: Callable[[], float] = lambda: 0.0) -> Snapshots:
    """Returns the snapshots of the only rank of a job, which has begun."""
    exchange = Exchange(1)
    exchange.own.rank = 0
    state._objects = lambda: exchange
    place = Place(0, 0, "a", "node-a")
    state._snapshots = Snapshots(state, folder, every, "stop", place_of_rank=lambda: place, clock=clock)
    with mock.patch.object(basics, "size", return_value=1):
        state._snapshots.sync()
    made: Snapshots = state._snapshots
    return made


def test_a_slow_disk_delays_no_step(held: HeldFolder, capfd: pytest.CaptureFixture[str]) -> None:
    state = elastic.ObjectState(lambda value: value, step=0, values=[])
    snapshots = alone(state, held)
    for step in range(1, 5):
        state.step = step
        state.values.append(step)
        state.commit()
    held.writes.set()
    snapshots.close()
    assert held.numbers() == [1]
    assert load(held.path / "snapshot-000000000001") == {"step": 1, "values": [1]}
    assert capfd.readouterr().err.count("is still being written") == 1


def test_a_change_of_ranks_leaves_a_snapshot_that_is_being_written(tmp_path: Path) -> None:
    writing, goes_on = threading.Event(), threading.Event()

    class Slow:
        """A value whose pickling waits."""

        def __deepcopy__(self, _: Any) -> Slow:
            return self

        def __reduce__(self) -> Any:
            writing.set()
            assert goes_on.wait(LIMIT_SECONDS)
            return int, ()

    state = elastic.ObjectState(lambda value: value, slow=Slow())
    snapshots = alone(state, Folder(str(tmp_path)))
    state.commit()
    assert writing.wait(LIMIT_SECONDS)
    with mock.patch.object(basics, "size", return_value=1):
        snapshots.sync()
    goes_on.set()
    snapshots.close()
    assert load(tmp_path / "snapshot-000000000001") == {"slow": 0}


def test_a_commit_is_written_when_one_is_due(tmp_path: Path) -> None:
    state = elastic.ObjectState(lambda value: value, step=0)
    now = [0.0]
    snapshots = alone(state, Folder(str(tmp_path)), 60.0, lambda: now[0])
    written = []
    for seconds in (30, 61, 90, 119, 121):
        now[0] = seconds
        state.commit()
        snapshots._wait()
        written.append(Folder(str(tmp_path)).numbers()[:1])
    assert written == [[], [2], [2], [2], [5]]


def test_trouble_with_the_disk_is_told_once_and_later_commits_try_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = elastic.ObjectState(lambda value: value, step=0)
    folder = Folder(str(tmp_path))
    snapshots = alone(state, folder)
    full = mock.patch.object(Folder, "incoming", side_effect=OSError(28, "No space left on device"))
    for fails in (True, True, False, True):
        with full if fails else mock.patch("os.fsync"):
            state.commit()
            snapshots._wait()
    told = capfd.readouterr().err
    assert folder.numbers() == [3]
    assert told.count("on node-a (OSError: [Errno 28] No space left on device); later commits try again") == 2, told
    assert [number for number in range(1, 5) if f"commit {number} is not written to" in told] == [1, 4], told


def test_an_error_of_a_slow_disk_is_told_too(held: HeldFolder, capfd: pytest.CaptureFixture[str]) -> None:
    state = elastic.ObjectState(lambda value: value, step=0)
    snapshots = alone(state, held)
    with mock.patch.object(Folder, "incoming", side_effect=OSError(28, "No space left on device")):
        state.commit()
        state.commit()
        held.writes.set()
        snapshots._wait()
    told = capfd.readouterr().err
    assert "is still being written" in told
    assert "commit 1 is not written" in told


@pytest.mark.parametrize("fails", ["_hand_over", "thread"])
def test_a_commit_goes_on_without_memory_or_a_thread(
    tmp_path: Path, fails: str, capfd: pytest.CaptureFixture[str]
) -> None:
    state = elastic.ObjectState(lambda value: value, step=0)
    snapshots = alone(state, Folder(str(tmp_path)))
    owner, name = (elastic.ObjectState, fails) if fails == "_hand_over" else (threading.Thread, "start")
    with mock.patch.object(owner, name, side_effect=RuntimeError("out of it")):
        state.commit()
    state.commit()
    snapshots.close()
    assert "commit 1 is not written" in capfd.readouterr().err
    assert Folder(str(tmp_path)).numbers() == [2]


def test_a_job_that_loses_too_many_ranks_leaves_its_last_commit(tmp_path: Path) -> None:
    state = elastic.ObjectState(lambda value: value, step=0)
    snapshots = alone(state, Folder(str(tmp_path)), 60.0)
    state.step = 7
    state.commit()
    state.step = 8
    for error, numbers in ((errors.RanksChangedError("lost"), []), (errors.PeerLostError("too few ranks"), [2])):
        with pytest.raises(type(error)), snapshots.saving_at_the_end():
            raise error
        assert snapshots._folder is not None
        assert snapshots._folder.numbers() == numbers
    assert load(tmp_path / "snapshot-000000000002") == {"step": 7}


def test_the_end_waits_for_a_slow_disk_and_says_so(held: HeldFolder) -> None:
    state = elastic.ObjectState(lambda value: value, step=1)
    snapshots = alone(state, held)
    state.commit()
    state.step = 2
    state.save()

    def say(text: str) -> None:
        told.append(text)
        held.writes.set()

    told: list[str] = []
    with (
        mock.patch.object(_snapshots, "_TELL_AFTER", 0.0),
        mock.patch.object(_snapshots, "say", say),
        pytest.raises(SystemExit),
        snapshots.saving_at_the_end(),
    ):
        raise SystemExit
    assert len(told) == 1
    assert "waits for a snapshot" in told[0]
    assert held.numbers() == [2, 1]
    assert load(held.path / "snapshot-000000000002") == {"step": 2}


def test_states_that_snapshots_cannot_write_are_refused_at_the_start() -> None:
    class Other(elastic.State):
        def save(self) -> None:
            """Copies nothing."""

    class More(elastic.ObjectState):
        def save(self) -> None:
            self.more = 1
            super().save()

    for state in (Other(), More()):
        with pytest.raises(errors.UnsupportedError, match=r"a (Other|More) has a save\(\) of its own"):
            _snapshots._require_written_whole(state)
    _snapshots._require_written_whole(elastic.ObjectState())
