"""Elastic jobs whose launcher has no ranks of its own: all of them run on hosts that join (sirtakirun --hub)."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from elastic_hosts import Seats, await_size, ended, joinable, joining, stop
from launch_support import Run, launch
from ssh_hosts import Hosts, unavailable_reason

HERE = socket.gethostname()
NAMES = [HERE, f"{HERE}#2", f"{HERE}#3"]  # of hosts that join, in their order


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Returns two machines without ssh between them."""
    if reason := unavailable_reason():
        pytest.skip(reason)
    with Hosts.of_a_test(tmp_path_factory.mktemp("hosts"), ssh=False) as made:
        yield made


def hub(folder: Path, ranks: str, *more: str, prefix: tuple[str, ...] = ()) -> AbstractContextManager[tuple[Run, int]]:
    """Returns a job without ranks on the machine of its launcher, and its port."""
    return joinable(folder, "--hub", "--elastic", ranks, *more, prefix=prefix)


def hosts_of(seats: Seats) -> list[str]:
    return sorted(name for _, name, _ in seats.values())


def test_a_job_runs_on_the_hosts_that_join_its_hub(tmp_path: Path) -> None:
    with hub(tmp_path, "2:3") as (run, port), joining(tmp_path, port) as first:
        run.read_until("waiting for hosts with 2 slots, for 10min at most")
        first.read_until("this host has joined the job with 1 slot, which waits for more hosts")
        with joining(tmp_path, port, "-np", "2") as second:
            assert hosts_of(await_size(run, 3)) == [NAMES[0], NAMES[1], NAMES[1]]
            parents = {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] for pid in run.marked()}
            assert str(run.process.pid) not in parents, "the hub has started no process"
            stop(run, tmp_path)
            for host in (first, second):
                assert "sirtakirun: the job has ended\n" in ended(host, 0).out


@pytest.mark.parametrize("first", ["near", "far"])
def test_hosts_of_two_machines_join_a_hub_on_one_of_them(first: str, hosts: Hosts, tmp_path: Path) -> None:
    inside = {"near": hosts.inside(hosts.near), "far": hosts.inside(hosts.far)}
    (second,) = inside.keys() - {first}
    address = hosts.near_address
    with (
        hub(tmp_path, "1:2", "-np", "2", prefix=inside["near"]) as (run, port),
        joining(tmp_path, port, address=address, prefix=inside[first]) as one,
    ):
        one.read_until("which waits for more hosts")
        with joining(tmp_path, port, address=address, prefix=inside[second]) as other:
            seats = await_size(run, 2)
            assert [seat[2] for seat in seats.values()] == [0, 0], "each is the first rank of its machine"
            stop(run, tmp_path)
            ended(one, 0)
            ended(other, 0)


def test_a_host_takes_the_place_of_one_that_is_killed(tmp_path: Path) -> None:
    with hub(tmp_path, "1:2", "-np", "2") as (run, port), joining(tmp_path, port) as first:
        with joining(tmp_path, port) as second:
            seats = await_size(run, 2)
            second.process.kill()
            run.read_until(r"lost.*its connection has ended.*1 rank goes on")
            kept = await_size(run, 1)
            assert set(kept.values()) <= set(seats.values()), "the other process has gone on"
        with joining(tmp_path, port) as third:
            again = await_size(run, 2)
            assert set(kept.items()) < set(again.items())
            stop(run, tmp_path)
            ended(first, 0)
            ended(third, 0)


def test_a_host_leaves_and_no_step_is_lost(tmp_path: Path) -> None:
    with hub(tmp_path, "1:2", "-np", "2") as (run, port), joining(tmp_path, port) as first:
        with joining(tmp_path, port) as second:
            await_size(run, 2)
            second.process.terminate()
            said, before = run.read_until(r"has left in order; 1 rank goes on as epoch (\d+)")
            assert said[1] == "2"
            assert not any("lost" in line for line in before), before
            ended(second, 0)
        await_size(run, 1)
        done = stop(run, tmp_path)
        ended(first, 0)
    assert "lost" not in done.out


def test_the_last_host_stays_until_another_one_has_the_state(tmp_path: Path) -> None:
    text = "rank 0 stays until a rank on another host has the state of the training"
    with hub(tmp_path, "1:2") as (run, port), joining(tmp_path, port) as first:
        await_size(run, 1)
        first.process.terminate()
        run.read_until(text)
        first.read_until(text)
        with joining(tmp_path, port) as second:
            ended(first, 0)
            assert hosts_of(await_size(run, 1)) == [NAMES[1]]
            stop(run, tmp_path)
            ended(second, 0)


def test_a_job_fails_when_all_hosts_are_gone(tmp_path: Path) -> None:
    with (
        hub(tmp_path, "1:2", "-np", "2") as (run, port),
        joining(tmp_path, port) as first,
        joining(tmp_path, port) as second,
    ):
        await_size(run, 2)
        for host in (first, second):
            host.process.kill()
        done = ended(run, 1)
        assert re.search(r"the first to fail was rank \d on \S+: lost: .*its connection has ended", done.out), done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_hub_ends_the_ranks_and_tells_their_hosts(number: signal.Signals, tmp_path: Path) -> None:
    with hub(tmp_path, "1:2", "-np", "2") as (run, port), joining(tmp_path, port, "-np", "2") as host:
        await_size(run, 2)
        run.process.send_signal(number)
        assert "sirtakirun: the job was interrupted\n" in ended(host, 128 + number).out
        ended(run, 128 + number)


def test_a_signal_to_a_hub_that_waits_tells_the_hosts(tmp_path: Path) -> None:
    with hub(tmp_path, "2:3") as (run, port), joining(tmp_path, port) as host:
        host.read_until("which waits for more hosts")
        run.process.send_signal(signal.SIGINT)
        assert "interrupted; nothing was started" in ended(run, 130).out
        assert "sirtakirun: the job was interrupted\n" in ended(host, 130).out


def test_a_hub_waits_for_so_many_hosts_and_so_long(tmp_path: Path) -> None:
    with hub(tmp_path, "1:3", "-np", "2", "--elastic-timeout", "10s") as (run, port), joining(tmp_path, port) as host:
        run.read_until("waiting for hosts with 2 slots, for 10s at most")
        text = (
            f"too few hosts within 10s (elastic.timeout): 1 host with 1 slot ({HERE}:1), of which 1 can be used, "
            "and the job starts with 2 ranks at least (-np)"
        )
        assert text in ended(run, 1).out
        assert text in ended(host, 1).out


def test_a_port_that_is_taken_and_a_wrong_secret(tmp_path: Path) -> None:
    with hub(tmp_path, "1:1") as (run, port):
        options = ("--hub", "--elastic", "1:1", "--secret-file", str(tmp_path / "secret"), "--join-port", str(port))
        done = launch(*options, "true")
        assert done.code == 1
        assert f"cannot listen on port {port}" in done.err, done.err
        done = launch("--join", f"127.0.0.1:{port}", env={"SIRTAKI_JOIN_SECRET": "a" * 64})
        assert done.code == 1
        assert "wrong job secret" in done.err, done.err
        with joining(tmp_path, port) as host:
            await_size(run, 1)
            stop(run, tmp_path)
            ended(host, 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("python",), "--hub needs --elastic MIN:MAX"),
        (("--elastic", "2:", "python"), "--hub needs --elastic MIN:MAX"),
        (("--elastic", "2:4", "-np", "1", "python"), "-np 1 is not between elastic.min and elastic.max (2 and 4)"),
        (("--elastic", "2:4", "-H", "a:2", "python"), "--hub: leave out -H, --hostfile, "),
        (("--elastic", "2:4", "python"), "the secret of the job is missing; give --secret-file FILE"),
    ],
)
def test_command_lines_that_a_hub_refuses(options: tuple[str, ...], text: str) -> None:
    done = launch("--hub", *options)
    assert done.code == 2
    assert text in done.err, done.err
