"""Elastic jobs whose hosts a script names: they come, go and fail while the training goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from elastic_hosts import await_size, command, offer, script, stop, with_false_ssh
from launch_support import Run, launch, running, wait_until


def options(folder: Path, ranks: str, *more: str) -> tuple[str, ...]:
    return ("--elastic", ranks, *script(folder), "--horovod", *more)


@contextmanager
def training(folder: Path, ranks: str, *more: str, **settings: object) -> Iterator[Run]:
    with running(*options(folder, ranks, *more), *command(folder), **settings) as run:
        yield run


def test_a_job_follows_its_hosts(tmp_path: Path) -> None:
    offer(tmp_path, "localhost:2")
    with training(tmp_path, "2:4") as run:
        first = await_size(run, 2)
        offer(tmp_path, "localhost:2", "127.0.0.1:2")
        all_four = await_size(run, 4)
        assert [all_four[slot][1] for slot in range(4)] == ["localhost"] * 2 + ["127.0.0.1"] * 2
        assert {slot: all_four[slot][0] for slot in first} == {slot: seat[0] for slot, seat in first.items()}
        # One machine under two names: each process has a local rank of its own.
        assert sorted(seat[2] for seat in all_four.values()) == [0, 1, 2, 3]
        offer(tmp_path, "127.0.0.1:2")
        left = await_size(run, 2)
        assert left == {slot: all_four[slot] for slot in (2, 3)}
        offer(tmp_path, "localhost:1", "127.0.0.1:2")
        again = await_size(run, 3)
        (new,) = set(again) - {2, 3}
        assert again[new][1] == "localhost"
        assert again[new][0] not in {seat[0] for seat in all_four.values()}
        done = stop(run, tmp_path)
    assert done.err.count("is asked to leave: localhost is not among the hosts any more") == 2, done.err
    assert len(re.findall(r"^sirtakirun: rank \d .* has left in order", done.err, re.MULTILINE)) == 2, done.err
    assert "ended:" not in done.err, done.err


def test_all_hosts_may_change_if_there_is_a_place_for_a_new_rank_first(tmp_path: Path) -> None:
    offer(tmp_path, "localhost:1")
    with training(tmp_path, "1:2") as run:
        await_size(run, 1)
        offer(tmp_path, "127.0.0.1:1")
        await_size(run, 2)
        assert await_size(run, 1)[1][1] == "127.0.0.1"
        stop(run, tmp_path)


def test_a_host_with_fewer_slots_loses_its_last_ranks(tmp_path: Path) -> None:
    offer(tmp_path, "localhost:3")
    with training(tmp_path, "1:3") as run:
        seats = await_size(run, 3)
        offer(tmp_path, "localhost")
        assert await_size(run, 1) == {0: seats[0]}
        stop(run, tmp_path)


def test_the_job_starts_with_what_there_is_when_that_is_enough(tmp_path: Path) -> None:
    offer(tmp_path)
    with training(tmp_path, "1:4", "-np", "2", "--slots-per-host", "3", "-v", stderr=subprocess.STDOUT) as run:
        offer(tmp_path, "127.0.0.1:1")
        run.read_until("host 127.0.0.1 can be used")
        offer(tmp_path, "localhost", "127.0.0.1:1")
        match, before = run.read_until(r"IN \d+ \d+ \d+ (\d)")
        assert match[1] == "4", "".join(before)
        assert not any("is started on" in line for line in before)
        stop(run, tmp_path)


def test_too_few_hosts_end_the_wait(tmp_path: Path) -> None:
    offer(tmp_path, "localhost:1")
    done = launch(*options(tmp_path, "2:4", "--elastic-timeout", "1s"), *command(tmp_path))
    assert done.code == 1, done.err
    assert (
        "too few hosts within 1s (elastic.timeout): the script names 1 host with 1 slot (localhost:1), of which 1 can "
        "be used, and the job starts with 2 ranks at least (-np)" in done.err
    ), done.err


def test_a_script_that_fails_leaves_the_hosts_as_they_are(tmp_path: Path) -> None:
    offer(tmp_path, "localhost:1")
    with training(tmp_path, "1:2", stderr=subprocess.STDOUT) as run:
        await_size(run, 1)
        (tmp_path / "hosts").unlink()
        run.read_until(r"the host discovery script has failed: exit code 1: cat: .*; the hosts stay as they are")
        offer(tmp_path, "two words")
        run.read_until(r"the host discovery script has failed: host 'two words': .*; the hosts stay as they are")
        offer(tmp_path)
        run.read_until(r"the host discovery script has failed: it names no host; the hosts stay as they are")
        offer(tmp_path, "localhost:2")
        await_size(run, 2)
        stop(run, tmp_path)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("/no/such/script", "exit code 127: "),
        ("echo a:b:c", "host 'a:b:c': put an IPv6 address in brackets"),
        ("kill -9 $$", "killed by signal 9"),
    ],
)
def test_a_script_that_fails_at_once_ends_the_job(script: str, text: str, tmp_path: Path) -> None:
    done = launch("--elastic", "1:2", "--host-discovery-script", script, *command(tmp_path))
    assert done.code == 1, done.err
    assert f"the host discovery script has failed: {text}" in done.err, done.err
    assert "nothing was started" in done.err


def test_a_host_that_cannot_be_used_is_left_out(tmp_path: Path) -> None:
    env = with_false_ssh(tmp_path)
    ssh = tmp_path / "ssh"
    ssh.write_text(ssh.read_text().replace("for command", 'case "$*" in *broken*) exit 255;; esac\nfor command', 1))
    offer(tmp_path, "broken:2", "localhost:1")
    with training(tmp_path, "1:3", "--rendezvous-address", "127.0.0.1", env=env) as run:
        await_size(run, 1)
        offer(tmp_path, "broken:2", "localhost:1", "elsewhere:1")
        seats = await_size(run, 2)
        assert seats[1][1] == "elsewhere"
        done = stop(run, tmp_path)
    assert done.err.count("the job goes on without this host until it answers") == 1, done.err


def test_the_agent_of_a_host_that_is_dropped_before_it_answers_ends_in_order(tmp_path: Path) -> None:
    env = with_false_ssh(tmp_path)
    ssh = tmp_path / "ssh"
    # The host answers when the pipe "come" is closed. The file "gone" tells of the end of its agent.
    ssh.write_text(ssh.read_text().replace("exec sh", f"cat '{tmp_path}/come'\nsh") + f"touch '{tmp_path}/gone'\n")
    os.mkfifo(tmp_path / "come")
    offer(tmp_path, "elsewhere:1")
    more = ("-np", "2", "--rendezvous-address", "127.0.0.1", "-v")
    with training(tmp_path, "1:2", *more, env=env, stderr=subprocess.STDOUT) as run:
        with (tmp_path / "come").open("w"):
            offer(tmp_path, "localhost:1")
            run.read_until("host localhost can be used")
        wait_until((tmp_path / "gone").exists, 20, "the agent has ended")
        offer(tmp_path, "localhost:2")
        _, before = run.read_until(r"IN \d")
        assert not any("elsewhere: its agent" in line for line in before), before
        stop(run, tmp_path)


def test_ranks_on_localhost_meet_the_others_on_the_network_of_these(tmp_path: Path) -> None:
    env = {**with_false_ssh(tmp_path), "SSH_CONNECTION": "127.0.0.2 1 127.0.0.1 22"}  # to "elsewhere"
    offer(tmp_path, "elsewhere:1")
    with training(tmp_path, "1:2", "-v", env=env, stderr=subprocess.STDOUT) as run:
        await_size(run, 1)
        offer(tmp_path, "elsewhere:1", "localhost:1")
        run.read_until("localhost: starting 1 from rank 1, coordinator at 127.0.0.2:")
        await_size(run, 2)
        stop(run, tmp_path)


def test_a_rank_that_does_not_leave_is_ended(tmp_path: Path) -> None:
    offer(tmp_path, "localhost:1", "127.0.0.1:1")
    with training(tmp_path, "1:2", "--term-grace", "1s") as run:
        await_size(run, 2)
        (tmp_path / "hang.1").touch()
        offer(tmp_path, "localhost:1")
        await_size(run, 1)
        done = stop(run, tmp_path)
    assert "rank 1 has not left within 1s (--term-grace), and is ended" in done.err, done.err


def test_a_host_that_is_back_when_its_rank_has_left_gets_another_one(tmp_path: Path) -> None:
    offer(tmp_path, "localhost:1", "127.0.0.1:1")
    with training(tmp_path, "1:2", "--term-grace", "1s", "-v", stderr=subprocess.STDOUT) as run:
        seats = await_size(run, 2)
        (tmp_path / "hang.1").touch()
        offer(tmp_path, "localhost:1")
        run.read_until("rank 1 is asked to leave")
        offer(tmp_path, "localhost:1", "127.0.0.1:1")
        run.read_until("rank 1 is not ended: 127.0.0.1 is there again")
        (tmp_path / "hang.1").unlink()
        await_size(run, 1)
        again = await_size(run, 2)
        assert again[1][0] != seats[1][0]
        stop(run, tmp_path)


def test_the_most_ranks_are_needed(tmp_path: Path) -> None:
    done = launch("--elastic", "2:", "--host-discovery-script", "echo a", *command(tmp_path))
    assert done.code == 2
    assert "--host-discovery-script needs --elastic MIN:MAX" in done.err
