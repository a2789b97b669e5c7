"""Elastic jobs whose hub is killed and started again at its port: hosts that have joined wait, and join again."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from elastic_hosts import ended, joinable, joining
from launch_support import Run, held_port, wait_until

# In each step every rank takes a sample of its own, by its number, and adds those of all to the state. Rank 0 notes the
# steps that it has committed. The training ends when the file "stop" is there, and stands still while "hang" is.
TRAIN = """
import os, sys, threading, time
from pathlib import Path
import sirtaki
from sirtaki.elastic import ObjectState, run
from sirtaki.objects import allgather_object

folder = Path(sys.argv[1])
sirtaki.init()
steps = open(folder / f"steps.{sirtaki.rank()}", "a", buffering=1)
pace = threading.Event()

@run
def train(state):
    print("BEGIN", state.step, flush=True)
    while True:
        pace.wait(0.01)
        while (folder / "hang").exists():
            pace.wait(0.02)
        if (folder / "fail").exists():
            sys.exit(3)
        sample = state.step * sirtaki.size() + sirtaki.rank()
        samples, stops = zip(*allgather_object((sample, (folder / "stop").exists())))
        if any(stops):
            return
        state.samples += sum(samples)
        state.step += 1
        state.commit()
        print(os.getpid(), state.step, time.monotonic(), file=steps)

state = ObjectState(step=0, samples=0)
train(state)
print("DONE", state.step, state.samples, flush=True)
sirtaki.shutdown()
"""
LOST = r"the connection to the launcher at \S+ has ended, and the ranks here with it"
WAITS = LOST + r"; start it again there with the same secret: this host waits for it until \d{4}-\S+ \d\d:\d\d:\d\d \("


@pytest.fixture
def port() -> Iterator[int]:
    """Returns the port of the hub, which each hub of the test takes."""
    with held_port() as held:
        yield held


def hub(folder: Path, port: int, *more: str, every: str = "0s") -> AbstractContextManager[tuple[Run, int]]:
    """Returns a job of two ranks that writes snapshots and goes on from them."""
    options = ("--hub", "--elastic", "1:2", "-np", "2", "--join-port", str(port), "--elastic-resume", "auto")
    options += ("--elastic-snapshot-dir", str(folder / "snapshots"), "--elastic-snapshot-every", every, *more)
    return joinable(folder, *options, program=TRAIN)


def kill(run: Run) -> float:
    """Kills a hub, and returns the time."""
    run.process.kill()
    run.process.wait()
    return time.monotonic()


@dataclass
class Life:
    """The steps that one process of rank 0 has committed."""

    steps: list[int]
    first_commit: float


def lives(folder: Path) -> list[Life]:
    found: dict[str, Life] = {}
    file = folder / "steps.0"
    for line in file.read_text().splitlines() if file.exists() else ():
        process, step, at = line.split()
        found.setdefault(process, Life([], float(at))).steps.append(int(step))
    for life in found.values():
        assert life.steps == list(range(life.steps[0], life.steps[-1] + 1))
    return list(found.values())


def lose(run: Run, *hosts: Run) -> float:
    """Kills a hub, and waits until its hosts wait for the next one; returns the time of the kill."""
    at = kill(run)
    for host in hosts:
        host.read_until(WAITS)
    return at


def await_steps(folder: Path, life: int, steps: int) -> None:
    """Waits until so many steps are committed in this life of the training."""
    what = f"life {life} has {steps} steps"
    wait_until(lambda: len(lives(folder)) > life and len(lives(folder)[life].steps) >= steps, 60, what)


def newest(folder: Path) -> int:
    """Returns the number of the newest snapshot."""
    return max((int(file.name[-12:]) for file in folder.glob("snapshots/snapshot-*")), default=0)


def check_end(run: Run, folder: Path) -> None:
    """Ends the training, and checks that its state has each sample once."""
    (folder / "stop").touch()
    done = run.finish(60)
    assert done.code == 0, done.out
    ends = set(re.findall(r"DONE (\d+) (\d+)", done.out))
    assert len(ends) == 1, done.out
    step, samples = (int(number) for number in ends.pop())
    assert step == lives(folder)[-1].steps[-1]
    assert samples == sum(range(2 * step))


def test_a_hub_that_is_killed_in_the_training_costs_no_commit(tmp_path: Path, port: int) -> None:
    with joining(tmp_path, port, "--start-timeout", "60s") as first, joining(tmp_path, port) as second:
        with hub(tmp_path, port, every="1h") as (run, _):
            await_steps(tmp_path, 0, 20)
            killed = lose(run, first, second)
        with hub(tmp_path, port, every="1h") as (run, _):
            run.read_until(r"goes on from commit \d+, written")
            await_steps(tmp_path, 1, 5)
            check_end(run, tmp_path)
        for host in (first, second):
            assert "the job has ended" in ended(host, 0).out
    before, after = lives(tmp_path)
    # The last commit may have been written before it was noted.
    assert after.steps[0] in (before.steps[-1] + 1, before.steps[-1] + 2)
    print(f"next commit {after.first_commit - killed:.2f} s after the kill of the hub")


def test_steps_behind_the_last_snapshot_are_made_again_if_ranks_cannot_write_one(tmp_path: Path, port: int) -> None:
    with hub(tmp_path, port) as (run, _), joining(tmp_path, port) as first, joining(tmp_path, port) as second:
        await_steps(tmp_path, 0, 20)
        wait_until(lambda: newest(tmp_path) > 0, 60, "there is a snapshot")
        known = newest(tmp_path)
        ranks = [int(file.read_text().split()[-3]) for file in tmp_path.glob("steps.?")]
        assert len(ranks) == 2
        for process in ranks:
            os.kill(process, signal.SIGSTOP)
        kill(run)
        for process in ranks:
            os.kill(process, signal.SIGKILL)
        for host in (first, second):
            host.read_until(WAITS)
        # A commit has the number of its step.
        written, done = newest(tmp_path), lives(tmp_path)[0].steps[-1]
        assert written >= known
        with hub(tmp_path, port) as (again, _):
            said, _ = again.read_until(r"goes on from commit (\d+), written")
            assert int(said[1]) == written
            for host in (first, second):
                host.read_until("this host has joined the job with 1 slot")
            await_steps(tmp_path, 1, 5)
            assert lives(tmp_path)[1].steps[0] == written + 1, "no other step is made again"
            check_end(again, tmp_path)
        for host in (first, second):
            assert "the job has ended" in ended(host, 0).out
    print(f"{max(0, done - written)} of {done} steps made again")


def test_a_hub_is_killed_twice(tmp_path: Path, port: int) -> None:
    with joining(tmp_path, port, "-np", "2", "--start-timeout", "60s") as host:
        for life in range(2):
            with hub(tmp_path, port) as (run, _):
                await_steps(tmp_path, life, 10)
                lose(run, host)
        with hub(tmp_path, port) as (run, _):
            await_steps(tmp_path, 2, 10)
            check_end(run, tmp_path)
        ended(host, 0)
    for before, after in pairwise(lives(tmp_path)):
        assert 1 < after.steps[0] <= before.steps[-1] + 2, "it goes on from a commit, and makes no step up"


def test_a_hub_is_killed_before_the_ranks_have_started(tmp_path: Path, port: int) -> None:
    with joining(tmp_path, port, "--start-timeout", "60s") as first:
        with hub(tmp_path, port) as (run, _):
            first.read_until("which waits for more hosts")
            lose(run, first)
        with hub(tmp_path, port) as (run, _), joining(tmp_path, port) as second:
            await_steps(tmp_path, 0, 5)
            check_end(run, tmp_path)
            ended(first, 0)
            ended(second, 0)


def test_the_wait_for_a_hub_ends_with_an_error(tmp_path: Path, port: int) -> None:
    with hub(tmp_path, port) as (run, _), joining(tmp_path, port, "--elastic-hub-wait", "300ms") as host:
        host.read_until("which waits for more hosts")
        kill(run)
        host.read_until(WAITS + r"elastic\.hub_wait; Ctrl-C ends the wait\)")
        said = ended(host, 1).out
    text = f"cannot reach the job again at 127.0.0.1:{port} within "
    assert text in said, said
    assert "start its launcher again at this address; elastic.hub_wait waits longer" in said, said


def test_a_host_does_not_wait_for_a_hub_if_told_so(tmp_path: Path, port: int) -> None:
    with hub(tmp_path, port) as (run, _), joining(tmp_path, port, "--elastic-hub-wait", "0s") as host:
        host.read_until("which waits for more hosts")
        kill(run)
        assert re.search(LOST + "\n", ended(host, 1).out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_ends_the_wait_for_a_hub(number: signal.Signals, tmp_path: Path, port: int) -> None:
    with hub(tmp_path, port) as (run, _), joining(tmp_path, port) as host:
        host.read_until("which waits for more hosts")
        lose(run, host)
        host.process.send_signal(number)
        ended(host, 128 + number)


def test_a_host_that_wants_to_leave_does_not_wait_for_a_hub(tmp_path: Path, port: int) -> None:
    with hub(tmp_path, port) as (run, _), joining(tmp_path, port, "-np", "2") as host:
        await_steps(tmp_path, 0, 1)
        (tmp_path / "hang").touch()
        host.process.terminate()
        host.read_until("this host leaves the job")
        kill(run)
        assert "has ended before the ranks here had left" in ended(host, 1).out


@pytest.mark.parametrize("how", ["done", "failed", "interrupted"])
def test_a_host_does_not_wait_for_a_hub_whose_job_has_ended(how: str, tmp_path: Path, port: int) -> None:
    options = ("--elastic-restarts", "0") if how == "failed" else ()
    with hub(tmp_path, port, *options) as (run, _), joining(tmp_path, port, "-np", "2") as host:
        await_steps(tmp_path, 0, 1)
        if how == "interrupted":
            run.process.terminate()
        else:
            (tmp_path / {"done": "stop", "failed": "fail"}[how]).touch()
        code = run.finish(60).code
        assert code == {"done": 0, "failed": 3, "interrupted": 128 + signal.SIGTERM}[how]
        said = ended(host, code).out
    assert "the connection to the launcher" not in said, said


def test_a_hub_with_another_secret_refuses_the_hosts_of_the_last_one(tmp_path: Path, port: int) -> None:
    with joining(tmp_path, port, "--start-timeout", "60s") as host:
        with hub(tmp_path, port) as (run, _):
            host.read_until("which waits for more hosts")
            lose(run, host)
        (tmp_path / "secret").unlink()
        with hub(tmp_path, port):
            assert "wrong job secret" in ended(host, 1).out
