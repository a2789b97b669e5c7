"""Elastic jobs that grow beyond the ranks of their start, on hosts that are known from the beginning."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from elastic_hosts import await_size, command, parent_of, stop, with_false_ssh
from launch_support import Run, launch, running


def test_a_job_grows_beyond_the_ranks_of_its_start(tmp_path: Path) -> None:
    options = ("-np", "2", "--elastic", "1:4", "--output-dir", str(tmp_path / "logs"))
    with running(*options, *command(tmp_path)) as run:
        first = await_size(run, 2)
        assert sorted(first) == [0, 1]
        seats = await_size(run, 4)
        assert {slot: seats[slot][0] for slot in first} == {slot: seat[0] for slot, seat in first.items()}
        assert [seats[slot][2] for slot in range(4)] == [0, 1, 2, 3], "local ranks"
        done = stop(run, tmp_path)
    for slot in (2, 3):
        assert done.err.count(f"rank {slot} is started on localhost\n") == 1, done.err
        assert f"IN {slot} " in (tmp_path / f"logs/rank.{slot}/stdout").read_text()


def test_a_rank_beyond_the_start_that_is_lost_comes_back_and_leaves_on_notice(tmp_path: Path) -> None:
    with running("-np", "2", "--elastic", "1:3", *command(tmp_path), stderr=subprocess.STDOUT) as run:
        seats = await_size(run, 3)
        os.kill(seats[2][0], signal.SIGKILL)
        await_size(run, 2)
        again = await_size(run, 3)
        assert again[2][0] != seats[2][0]
        os.kill(again[2][0], signal.SIGTERM)
        await_size(run, 2)
        done = stop(run, tmp_path)
    assert "rank 2 is started" not in done.out, "its place stays empty"


@contextmanager
def training_on(hosts: str, *options: str, folder: Path) -> Iterator[Run]:
    """Trains on hosts of which all but localhost are reached by ssh."""
    where = ("-H", hosts, "--rendezvous-address", "127.0.0.1")
    with running(*where, *options, *command(folder), env=with_false_ssh(folder)) as run:
        yield run


def test_hosts_that_have_no_rank_at_the_start_get_some_later(tmp_path: Path) -> None:
    with training_on("localhost:1,elsewhere:2", "-np", "1", "--elastic", "1:3", folder=tmp_path) as run:
        await_size(run, 3)
        done = stop(run, tmp_path)
    assert re.findall(r"rank (\d) is started on elsewhere\n", done.err) == ["1", "2"], done.err


def test_a_place_on_a_host_that_is_gone_goes_to_another_with_room(tmp_path: Path) -> None:
    hosts = "localhost:1,elsewhere:1,spare:2"
    with training_on(hosts, "-np", "2", "--elastic", "1:3", folder=tmp_path) as run:
        seats = await_size(run, 3)
        os.kill(parent_of(seats[1][0]), signal.SIGKILL)
        await_size(run, 2)
        await_size(run, 3)
        done = stop(run, tmp_path)
    assert "rank 2 is started on spare\n" in done.err, done.err
    assert "rank 1 is started again on spare" in done.err, done.err


def test_the_most_ranks_must_fit(tmp_path: Path) -> None:
    done = launch("-H", "localhost:2", "-np", "2", "--elastic", "1:4", *command(tmp_path))
    assert done.code == 2
    assert "elastic.max is 4, but the hosts offer 2 slots" in done.err
    done = launch("-np", "4", "--elastic", "1:2", *command(tmp_path))
    assert done.code == 2
    assert "elastic.max is 2, but the job has 4 ranks at its start; start fewer with -np" in done.err
