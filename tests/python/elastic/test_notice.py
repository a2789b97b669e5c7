"""SIGTERM to a rank of an elastic job, in one process with a runtime that only pretends."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

import sirtaki
from sirtaki import _end_report, _growth, _notice, basics, elastic
from sirtaki._telemetry.run_file import writer
from sirtaki.errors import NotInitializedError


class Plain(elastic.State):
    """A state without contents."""

    def save(self) -> None:
        """Does nothing."""

    restore = sync = save


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes this process rank 1 of three in an elastic job, of which two are needed."""
    before = signal.getsignal(signal.SIGTERM)
    sirtaki.init()
    for name, value in {"is_elastic": True, "size": 3, "rank": 1}.items():
        monkeypatch.setattr(basics, name, lambda value=value: value)
    monkeypatch.setattr(_notice._state, "possible", True)
    monkeypatch.setattr(_notice._state, "least", 2)
    monkeypatch.setattr(_notice._state, "asked", False)
    yield
    monkeypatch.undo()
    sirtaki.shutdown()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def leave_soon(session: None) -> Iterator[mock.Mock]:
    """Yields a stand-in for the request to leave."""
    with mock.patch("sirtaki._core.leave_soon") as asked:
        yield asked


def run(train: Callable[[], Any]) -> None:
    elastic.run(lambda state: train())(Plain())


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_notice_asks_to_leave_and_says_so(leave_soon: mock.Mock, capfd: pytest.CaptureFixture[str]) -> None:
    run(sigterm)
    leave_soon.assert_called_once_with()
    assert capfd.readouterr().err == (
        "sirtaki: rank 1 has got SIGTERM and leaves the job at its next commit; a second SIGTERM ends this process at "
        "once\n"
    )
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("change", [{"least": 3}, {"possible": False}], ids=["too few", "not possible"])
def test_a_handler_gets_what_is_no_notice(leave_soon: mock.Mock, change: dict[str, Any]) -> None:
    handler = mock.Mock()
    signal.signal(signal.SIGTERM, handler)
    for name, value in change.items():
        setattr(_notice._state, name, value)
    run(sigterm)
    handler.assert_called_once()
    leave_soon.assert_not_called()


def test_a_notice_counts_after_a_signal_that_was_none(leave_soon: mock.Mock) -> None:
    handler = mock.Mock()
    signal.signal(signal.SIGTERM, handler)
    _notice._state.least = 3

    def train() -> None:
        sigterm()
        leave_soon.assert_not_called()
        _notice._state.least = 2  # another rank has joined
        _notice._ask_again()
        # The notice of an agent, launcher/agent/agent_ranks.cc.
        ctypes.CDLL(None).sigqueue(os.getpid(), signal.SIGTERM, ctypes.c_void_p(1))

    run(train)
    assert handler.call_count == 2
    leave_soon.assert_called_once_with()


def test_nothing_is_installed_in_another_thread_or_under_another_launcher(
    session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run, args=(look,))
    thread.start()
    thread.join()
    monkeypatch.setattr(basics, "is_elastic", lambda: True)
    monkeypatch.delenv("SIRTAKI_JOB_RANK", raising=False)
    _notice._begin()
    run(look)
    assert seen == [signal.SIG_DFL] * 2


def test_the_handler_of_the_program_is_not_called_while_it_runs(leave_soon: mock.Mock) -> None:
    calls: list[str] = []

    def save(number: int, frame: object) -> None:
        calls.append("begins")
        if len(calls) == 1:
            sigterm()
            sigterm()
        calls.append("ends")

    signal.signal(signal.SIGTERM, save)
    run(sigterm)
    assert calls == ["begins", "ends"]
    leave_soon.assert_called_once_with()
    run(sigterm)
    assert calls == ["begins", "ends"] * 2, "the second notice is for the handler alone"
    leave_soon.assert_called_once_with()
    assert signal.getsignal(signal.SIGTERM) is save


def test_the_handler_of_the_run_file_gets_the_second_signal(
    leave_soon: mock.Mock, capfd: pytest.CaptureFixture[str]
) -> None:
    signal.signal(signal.SIGTERM, writer._on_sigterm)
    went_on: list[bool] = []

    def train() -> None:
        sigterm()
        went_on.append(True)
        sigterm()

    with pytest.raises(SystemExit) as ended:
        run(train)
    assert ended.value.code == 128 + signal.SIGTERM
    assert went_on == [True]
    # Not "at once": the handler is Python's, which runs when the main thread is back from a call.
    assert capfd.readouterr().err.endswith("; a second SIGTERM ends this process\n")
    leave_soon.assert_called_once_with()


def test_a_forked_child_gets_the_handler_of_before(leave_soon: mock.Mock) -> None:
    def train() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 1)
        assert os.waitpid(child, 0)[1] == 0

    run(train)


def test_a_rank_asks_again_in_the_next_epoch(leave_soon: mock.Mock, capfd: pytest.CaptureFixture[str]) -> None:
    run(sigterm)
    with mock.patch("sirtaki._core.regroup", create=True), mock.patch.object(basics, "size", return_value=2):
        _growth.regroup()
    assert leave_soon.call_count == 2
    assert "rank 1 cannot leave the job yet, because too few ranks would be left" in capfd.readouterr().err


class Trained:
    """The part of an optimizer that a report reads."""

    exposed_seconds = 0.0

    local_stats = staticmethod(dict)
    compression_report = staticmethod(list)


def test_a_rank_that_stays_has_a_report_of_each_part(
    leave_soon: mock.Mock, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(basics, "rank", lambda: 0)
    optimizer = Trained()
    training = _end_report.follow(optimizer)

    def reported() -> list[str]:
        return re.findall(r"\d+ in ", capfd.readouterr().err)

    run(sigterm)
    for steps in (2, 3):
        for _ in range(steps):
            training.stepped()
        with mock.patch("sirtaki._core.regroup"):
            _growth.regroup()
        assert reported() == [f"{steps} in "]
        assert not _end_report.session.terminated
    training.stepped()
    basics.prepare_end()
    assert reported() == ["1 in "]


@pytest.mark.parametrize(("rank", "code"), [(1, 0), (None, None)])
def test_only_a_departure_ends_the_program(leave_soon: mock.Mock, rank: int | None, code: int | None) -> None:
    run(sigterm)
    callback = mock.Mock()
    answer = NotInitializedError("the answer", rank)
    with (
        mock.patch("sirtaki._core.regroup", create=True, side_effect=answer),
        mock.patch.object(basics._state, "before_end", [callback]),
        pytest.raises(NotInitializedError if code is None else SystemExit) as ended,
    ):
        _growth.regroup()
    callback.assert_called_once_with()
    assert ended.value is answer if code is None else ended.value.code == code
    _notice._begin()
    assert not _notice._state.asked


@pytest.mark.parametrize(("grows", "least", "wanted"), [(True, 3, 7), (False, 3, None), (False, 2, 7)])
def test_commits_are_collective_where_ranks_may_join_or_leave(
    leave_soon: mock.Mock, grows: bool, least: int, wanted: int | None
) -> None:
    _notice._state.least = least
    with mock.patch("sirtaki._core.growth", return_value=(grows, False, 7)), basics.losses_raise():
        assert _growth.change_wanted() == wanted
