"""Elastic jobs in which a failed process takes its host along, for a while or for good, and the limit of changes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from elastic_hosts import TRAIN, Seats, await_size, command, offer, parent_of, script, stop
from launch_support import PYTHON, running

TWO_HOSTS = ("-H", "localhost:2,127.0.0.1:2")
BY_HOST = ("--elastic-on-failure", "host")


def fail(folder: Path, slot: int) -> None:
    """Makes a rank end with code 3."""
    (folder / f"fail.{slot}").touch()


def end_by_exception(folder: Path, seats: Seats) -> None:
    fail(folder, 3)


def end_by_signal(folder: Path, seats: Seats) -> None:
    os.kill(seats[3][0], signal.SIGKILL)


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ((*BY_HOST, "--elastic", "1:4"), end_by_exception),
        ((*BY_HOST, "--elastic", "1:"), end_by_signal),
        (("--horovod", "--num-proc", "2", "--min-num-proc", "2"), end_by_signal),
    ],
    ids=["exception", "job-that-only-shrinks", "horovod"],
)
def test_a_failed_process_takes_its_host_along(
    options: tuple[str, ...], end: Callable[[Path, Seats], None], tmp_path: Path
) -> None:
    with running(*TWO_HOSTS, *options, *command(tmp_path)) as run:
        seats = await_size(run, 4)  # all slots, also with Horovod's names, where -np is what the start needs
        end(tmp_path, seats)
        assert {slot: seat[0] for slot, seat in await_size(run, 2).items()} == {0: seats[0][0], 1: seats[1][0]}
        done = stop(run, tmp_path)
    assert "host 127.0.0.1 is left out for good, because rank 3 has failed there (elastic.on_failure)" in done.err
    assert "as epoch 2" in done.err, done.err
    assert "as epoch 3" not in done.err, done.err
    assert "is started" not in done.err, done.err


def test_a_job_on_one_host_goes_on_without_the_rank_alone(tmp_path: Path) -> None:
    with running("-np", "3", "--horovod", "--min-np", "1", *command(tmp_path)) as run:
        await_size(run, 3)
        fail(tmp_path, 1)
        assert sorted(await_size(run, 2)) == [0, 2]
        stop(run, tmp_path)


def test_a_host_comes_back_after_its_rest(tmp_path: Path) -> None:
    options = ("--elastic", "1:4", *BY_HOST, "--blacklist-cooldown-range", "1", "2")
    with running(*TWO_HOSTS, *options, *command(tmp_path)) as run:
        seats = await_size(run, 4)
        for _ in range(2):
            fail(tmp_path, 2)
            await_size(run, 2)
            again = await_size(run, 4)
            assert [again[slot][0] for slot in (0, 1)] == [seats[slot][0] for slot in (0, 1)]
        done = stop(run, tmp_path)
    found = re.findall(r"host 127.0.0.1 rests for (\d+)(ms|s), because", done.err)
    rests = [int(number) * (1 if unit == "ms" else 1000) for number, unit in found]
    assert len(rests) == 2, done.err
    assert 1000 <= rests[0] <= 1250, done.err
    assert rests[1] == 2000, done.err


def test_a_host_that_is_out_is_not_used_again_when_the_script_names_it_anew(tmp_path: Path) -> None:
    offer(tmp_path, "localhost:1", "127.0.0.1:1")
    with running(*script(tmp_path), "--elastic", "1:2", "--horovod", *command(tmp_path)) as run:
        await_size(run, 2)
        fail(tmp_path, 1)
        await_size(run, 1)
        offer(tmp_path, "localhost:1")
        offer(tmp_path, "localhost:1", "127.0.0.1:1", "127.0.0.2:1")
        assert await_size(run, 2)[1][1] == "127.0.0.2"
        stop(run, tmp_path)


def test_a_host_comes_back_though_another_one_is_gone(tmp_path: Path) -> None:
    options = ("--elastic", "2:3", *BY_HOST, "--blacklist-cooldown-range", "1", "1")
    with running("-H", "localhost:1,127.0.0.1:1,127.0.0.2:1", *options, *command(tmp_path)) as run:
        seats = await_size(run, 3)
        os.kill(parent_of(seats[1][0]), signal.SIGKILL)  # the agent of its host, which is out for good
        await_size(run, 2)
        fail(tmp_path, 2)
        again = await_size(run, 2)
        assert again[2][0] != seats[2][0]
        stop(run, tmp_path)


def test_a_process_that_cannot_be_started_leaves_its_host_alone(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    program.chmod(0o755)
    training = TRAIN.replace("sirtaki.init()\n", "sirtaki.init()\nPath(sys.argv[2]).unlink(missing_ok=True)\n", 1)
    options = ("-H", "localhost:1,127.0.0.1:2", "-np", "2", "--elastic", "1:3", *BY_HOST)
    rank = (str(program), "-c", training, str(tmp_path), str(program))
    with running(*options, *rank, stderr=subprocess.STDOUT) as run:
        run.read_until("sirtakirun: host 127.0.0.1: ")
        done = stop(run, tmp_path)
    assert "is left out" not in done.out, done.out
    assert done.out.count("DONE") == 2, done.out


def test_the_job_ends_with_the_failure_when_the_hosts_that_are_left_are_too_few(tmp_path: Path) -> None:
    with running(*TWO_HOSTS, "--elastic", "3:4", *BY_HOST, *command(tmp_path)) as run:
        await_size(run, 4)
        fail(tmp_path, 3)
        done = run.finish(60)
    assert done.code == 3, done.err
    assert "too few ranks: 2 of at least 3 (elastic.min)" in done.err, done.err


def test_the_first_failure_is_to_blame_when_all_hosts_are_out(tmp_path: Path) -> None:
    with running("-H", "localhost:1,127.0.0.1:1", "--horovod", "--min-np", "1", *command(tmp_path)) as run:
        seats = await_size(run, 2)
        fail(tmp_path, 1)
        await_size(run, 1)
        os.kill(seats[0][0], signal.SIGKILL)
        done = run.finish(60)
    assert done.code == 3, done.err
    assert "the first to fail was rank 1 on 127.0.0.1: exit code 3" in done.err, done.err


def test_a_rank_that_is_lost_with_its_host_has_no_exit_code(tmp_path: Path) -> None:
    with running("-H", "localhost:1,127.0.0.1:1", "--elastic", "1:", *BY_HOST, *command(tmp_path)) as run:
        seats = await_size(run, 2)
        os.kill(parent_of(seats[1][0]), signal.SIGKILL)
        await_size(run, 1)
        os.kill(seats[0][0], signal.SIGKILL)
        done = run.finish(60)
    assert done.code == 1, done.err
    assert "the first to fail was rank 1 on 127.0.0.1: lost" in done.err, done.err


def test_joins_count_for_the_limit_of_changes(tmp_path: Path) -> None:
    with running("-np", "1", "--elastic", "1:3", "--reset-limit", "0", *command(tmp_path)) as run:
        done = run.finish(60)
    assert done.code == 1, done.err
    assert "(elastic.reset_limit), for the last time because ranks have joined" in done.err, done.err


def test_changes_beyond_the_limit_end_the_job(tmp_path: Path) -> None:
    with running("-np", "3", "--elastic", "1:", "--reset-limit", "1", *command(tmp_path)) as run:
        await_size(run, 3)
        fail(tmp_path, 2)
        await_size(run, 2)
        fail(tmp_path, 1)
        done = run.finish(60)
    assert done.code == 1, done.err
    limit = r"the ranks have changed more than once \(elastic.reset_limit\), for the last time because rank 1 "
    assert re.search(limit, done.err), done.err
