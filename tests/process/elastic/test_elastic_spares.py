"""Spares of an elastic job: processes that wait in init() until a rank is lost or leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import PYTHON, Outcome, Run, launch, running

# Trains until the folder has a file "stop". The process of slot 3 never comes to init() if there is a file "late".
TRAIN = """
import os, sys, threading
from pathlib import Path
import sirtaki
from sirtaki.elastic import ObjectState, run
from sirtaki.objects import allgather_object

slot, folder = os.environ["SIRTAKI_JOB_RANK"], Path(sys.argv[1])
pace = threading.Event()
if slot == "3" and (folder / "late").exists():
    print("LATE", flush=True)
    pace.wait()
sirtaki.init()

@run
def train(state):
    print("IN", slot, sirtaki.rank(), sirtaki.size(), flush=True)
    while not all(allgather_object((folder / "stop").exists())):
        pace.wait(0.01)
        state.step += 1
        state.commit()

train(ObjectState(step=0))
sirtaki.shutdown()
"""
JOB = ("-np", "3", "--elastic", "2:3", "--spares", "1", "--elastic-silence", "3s", "--failure-grace", "3s", "-v")
SCRIPT = ("--host-discovery-script", "echo localhost:4")


class Job:
    """A job of three ranks and a spare in slot 3, and what it has printed."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run = run
        self.folder = folder
        self.lines: list[str] = []

    def read_until(self, pattern: str) -> None:
        found, before = self.run.read_until(pattern)
        self.lines += [*before, found.string]

    def kill(self, slot: int, number: int = signal.SIGKILL) -> None:
        pids = re.findall(rf"rank {slot} on localhost: pid (\d+)", "".join(self.lines))
        os.kill(int(pids[-1]), number)

    def entries(self) -> list[tuple[str, ...]]:
        """Returns slot, rank and size of each entry into the training function."""
        return re.findall(r"IN (\d) (\d) (\d)", "".join(self.lines))

    def finish(self) -> Outcome:
        done = self.run.finish(60)
        self.lines.append(done.out)
        assert not self.run.marked(), f"left behind: {self.run.marked()}"
        return done

    def end(self) -> str:
        """Ends the training, and returns the output of the job."""
        (self.folder / "stop").touch()
        done = self.finish()
        assert done.code == 0, "".join(self.lines)
        return "".join(self.lines)


@contextmanager
def job(folder: Path, *options: str) -> Iterator[Job]:
    with running(*JOB, *options, PYTHON, "-c", TRAIN, str(folder), stderr=subprocess.STDOUT) as run:
        yield Job(run, folder)


@contextmanager
def job_with_spare(folder: Path, *options: str) -> Iterator[Job]:
    with job(folder, *options) as started:
        started.read_until("rank 3 on localhost waits as a spare")
        yield started


@pytest.mark.parametrize("options", [(), SCRIPT], ids=["slots of its own", "slots of a script"])
def test_a_spare_takes_the_place_of_a_lost_rank_and_another_one_follows(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    with job_with_spare(tmp_path, *options) as started:
        started.kill(1)
        started.read_until("IN 3 2 3")
        started.read_until(r"rank 1 is started again on localhost \(start 2\), as a spare")
        started.read_until("rank 1 on localhost waits as a spare")
        started.kill(0)
        started.read_until("IN 1 2 3")
        started.read_until("rank 0 on localhost waits as a spare")
        text = started.end()
    assert {size for *_, size in started.entries()} == {"3"}, "no epoch goes without the spare"
    assert len(started.entries()) == 9, text
    assert re.search(r"all 3 ranks ended with exit code 0 after \S+; 1 spare waited", text), text
    assert {f"rank {slot} ended: exit code 0" in text for slot in range(4)} == {True}, text
    assert "Traceback" not in text


def test_a_spare_takes_the_place_of_a_rank_that_leaves(tmp_path: Path) -> None:
    with job_with_spare(tmp_path) as started:
        started.kill(1, signal.SIGTERM)
        started.read_until("IN 3 2 3")
        text = started.end()
    assert {size for *_, size in started.entries()} == {"3"}, text
    assert "has left in order" in text, text


def test_a_lost_spare_is_replaced_and_nobody_else_is_disturbed(tmp_path: Path) -> None:
    with job_with_spare(tmp_path) as started:
        started.kill(3)
        started.read_until("rank 3 ended before it had joined: killed by signal 9")
        started.read_until(r"rank 3 is started again on localhost \(start 2\), as a spare")
        started.read_until("rank 3 on localhost waits as a spare")
        text = started.end()
    assert sorted(started.entries()) == [("0", "0", "3"), ("1", "1", "3"), ("2", "2", "3")], text


def test_a_spare_that_has_not_come_when_the_job_ends_is_ended(tmp_path: Path) -> None:
    (tmp_path / "late").touch()
    with job(tmp_path) as started:
        started.read_until("LATE")
        text = started.end()
    assert re.search(r"all 3 ranks ended with exit code 0 after \S+$", text, re.MULTILINE), text


def test_ctrl_c_ends_a_spare(tmp_path: Path) -> None:
    with job_with_spare(tmp_path) as started:
        started.run.process.send_signal(signal.SIGINT)
        assert started.finish().code == 128 + signal.SIGINT


def test_spares_take_no_part_of_the_cores() -> None:
    alone, *with_spare = (
        launch("-np", "1", *options, "printenv", "OMP_NUM_THREADS", prefix=("env", "-u", "OMP_NUM_THREADS"))
        for options in (
            (),
            ("--elastic", "1:1", "--spares", "1"),
            ("-H", "localhost", "--elastic", "1:1", "--spares", "1"),
        )
    )
    assert alone.code == 0, alone.err
    assert [done.out for done in with_spare] == [alone.out, alone.out]


@pytest.mark.parametrize("options", [(), ("--elastic", "1:")], ids=["not elastic", "does not grow"])
def test_a_job_that_takes_no_ranks_takes_no_spares(options: tuple[str, ...]) -> None:
    done = launch("-np", "2", *options, "--spares", "1", "true")
    assert done.code != 0
    assert "--spares 1 needs --elastic MIN:MAX" in done.err, done.err
