"""Elastic jobs that hosts join by themselves, and leave again (sirtakirun --join)."""

from __future__ import annotations

import contextlib
import os
import random
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
from launch_support import PYTHON, Run, launch, pester, wait_until
from ssh_hosts import Hosts, unavailable_reason

HERE = socket.gethostname()
SECOND, THIRD = f"{HERE}#2", f"{HERE}#3"  # names of hosts that join from the machine of the launcher


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Returns two machines without ssh between them."""
    if reason := unavailable_reason():
        pytest.skip(reason)
    with Hosts.of_a_test(tmp_path_factory.mktemp("hosts"), ssh=False) as made:
        yield made


def job(folder: Path, ranks: str, *more: str, prefix: tuple[str, ...] = ()) -> AbstractContextManager[tuple[Run, int]]:
    """Returns an elastic job that hosts may join, and its port."""
    return joinable(folder, "--elastic", ranks, "--join-port", "0", *more, prefix=prefix)


def await_end(seats: Seats, host: str) -> None:
    """Waits until the ranks of a host have ended."""
    ranks = [process for process, name, _ in seats.values() if name == host]
    assert ranks
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), 10, "the ranks have ended")


def test_a_host_joins_and_ends_with_the_job(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with job(tmp_path, "2:4") as (run, port):
        await_size(run, 2)
        silent = pester(port, random.Random(seed))
        assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
        with joining(tmp_path, port, "-np", "2") as host:
            run.read_until(f"host {SECOND} has joined the job with 2 slots$")
            seats = await_size(run, 4)
            assert [seats[slot][1] for slot in range(4)] == [HERE] * 2 + [SECOND] * 2
            # One machine under two names: each process has a local rank of its own.
            assert sorted(seat[2] for seat in seats.values()) == [0, 1, 2, 3]
            secret = (tmp_path / "secret").read_text().strip()
            for pid in (*run.marked(), *host.marked()):
                with contextlib.suppress(OSError):
                    assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            stop(run, tmp_path)
            assert "sirtakirun: the job has ended\n" in ended(host, 0).out
        for link in silent:
            link.close()


@pytest.mark.parametrize("unit", ["rank", "host"])
def test_a_host_that_is_killed_is_lost_and_may_come_back(unit: str, tmp_path: Path) -> None:
    options = ("--rendezvous-address", "127.0.0.1", "--elastic-on-failure", unit)
    with job(tmp_path, "1:3", *options) as (run, port):
        await_size(run, 1)
        with joining(tmp_path, port, "-np", "2", address="127.0.0.2") as host:
            first = await_size(run, 3)
            host.process.kill()
            run.read_until(r"lost.*its connection has ended.*ranks? goe?s? on")
            assert await_size(run, 1) == {0: first[0]}
            await_end(first, SECOND)
        with joining(tmp_path, port, "-np", "2", address="127.0.0.2") as host:
            again = await_size(run, 3)
            assert [again[slot][1] for slot in (1, 2)] == [SECOND] * 2
            assert again[0] == first[0]
            stop(run, tmp_path)
            ended(host, 0)


def test_a_host_ends_its_ranks_and_waits_when_the_launcher_is_gone(tmp_path: Path) -> None:
    with job(tmp_path, "1:2") as (run, port), joining(tmp_path, port) as host:
        seats = await_size(run, 2)
        run.process.kill()
        host.read_until(f"the connection to the launcher at 127.0.0.1:{port} has ended, .* this host waits")
        await_end(seats, SECOND)
        host.process.terminate()
        ended(host, 128 + signal.SIGTERM)


def test_a_host_leaves_in_order(tmp_path: Path) -> None:
    with job(tmp_path, "1:3") as (run, port):
        await_size(run, 1)
        with joining(tmp_path, port, "-np", "2") as host:
            seats = await_size(run, 3)
            host.process.terminate()
            host.process.terminate()  # as `timeout` and schedulers do
            assert await_size(run, 1) == {0: seats[0]}
            assert "this host has left the job" in ended(host, 0).out
        done = stop(run, tmp_path)
        assert "DONE" in done.out


def test_signals_that_its_shell_ignores_do_not_make_a_host_leave(tmp_path: Path) -> None:
    prefix = ("env", "--ignore-signal=HUP,INT,QUIT")
    with job(tmp_path, "1:2") as (run, port), joining(tmp_path, port, prefix=prefix) as host:
        await_size(run, 2)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            host.process.send_signal(number)
        stop(run, tmp_path)
        assert "leaves" not in ended(host, 0).out


def test_a_host_that_is_left_out_may_not_come_back(tmp_path: Path) -> None:
    with job(tmp_path, "1:2", "--elastic-on-failure", "host") as (run, port):
        with joining(tmp_path, port) as host:
            await_size(run, 2)
            (tmp_path / "fail.1").touch()
            ended(host, 1)
            await_size(run, 1)
        with joining(tmp_path, port) as host:
            said = ended(host, 1).out
        text = f"host {SECOND} is left out for good, because rank 1 has failed there (elastic.on_failure)"
        assert text in said, said
        stop(run, tmp_path)


def test_the_only_host_with_the_state_leaves_when_another_one_has_it(tmp_path: Path) -> None:
    options = ("--elastic-on-failure", "rank", "--elastic-restarts", "0")
    with job(tmp_path, "1:3", *options) as (run, port), joining(tmp_path, port) as host:
        seats = await_size(run, 2)
        (tmp_path / "fail.0").touch()
        assert await_size(run, 1) == {1: seats[1]}
        host.process.terminate()
        run.read_until(f"host {SECOND} leaves the job")
        with joining(tmp_path, port) as last:
            ended(host, 0)
            assert [seat[1] for seat in await_size(run, 1).values()] == [THIRD]
            stop(run, tmp_path)
            ended(last, 0)


def test_a_second_interrupt_ends_the_ranks_of_a_host_at_once(tmp_path: Path) -> None:
    with job(tmp_path, "1:2") as (run, port), joining(tmp_path, port) as host:
        seats = await_size(run, 2)
        (tmp_path / "hang.1").touch()
        host.process.send_signal(signal.SIGINT)
        host.read_until("this host leaves the job")
        host.process.send_signal(signal.SIGINT)
        ended(host, 128 + signal.SIGINT)
        await_end(seats, SECOND)
        await_size(run, 1)
        stop(run, tmp_path)


def state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_host_stands_still_and_goes_on(tmp_path: Path) -> None:
    with job(tmp_path, "1:3", "--elastic-silence", "60s") as (run, port), joining(tmp_path, port, "-np", "2") as host:
        seats = await_size(run, 3)
        processes = [host.process.pid, *host.marked(), *(pid for pid, name, _ in seats.values() if name == SECOND)]
        assert len(processes) == 4  # with the agent
        host.process.send_signal(signal.SIGTSTP)
        wait_until(lambda: {state_of(pid) for pid in processes} == {"T"}, 20, "the host stands still")
        host.process.send_signal(signal.SIGCONT)
        wait_until(lambda: "T" not in {state_of(pid) for pid in processes}, 20, "the host goes on")
        done = stop(run, tmp_path)
        assert "lost" not in done.out, done.out
        ended(host, 0)


def test_a_host_that_stands_still_for_too_long_has_lost_its_ranks(tmp_path: Path) -> None:
    with job(tmp_path, "1:2", "--elastic-on-failure", "rank") as (run, port), joining(tmp_path, port) as host:
        first = await_size(run, 2)
        host.process.send_signal(signal.SIGTSTP)
        run.read_until(r"rank 1 .* has been silent for .*; 1 rank goes on")
        assert await_size(run, 1) == {0: first[0]}
        assert state_of(host.process.pid) == "T"
        host.process.send_signal(signal.SIGCONT)
        seats = await_size(run, 2)
        assert seats[1][1] == SECOND
        assert seats[1][0] != first[1][0]
        stop(run, tmp_path)
        ended(host, 0)


# Runs a command in the foreground of a terminal whose processes in the background must not write ("stty tostop").
TERMINAL = """
import fcntl, os, pty, signal, sys, termios
os.setsid()
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
modes = termios.tcgetattr(slave)
modes[3] |= termios.TOSTOP
termios.tcsetattr(slave, termios.TCSANOW, modes)
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.setpgid(0, 0)
    os.tcsetpgrp(slave, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    for fd in range(3):
        os.dup2(slave, fd)
    os.execvp(sys.argv[1], sys.argv[1:])
os.close(slave)
try:
    while text := os.read(master, 4096):
        os.write(1, text)
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_the_output_of_a_host_does_not_stop_it(tmp_path: Path) -> None:
    terminal = (PYTHON, "-c", TERMINAL)
    with job(tmp_path, "1:2") as (run, port), joining(tmp_path, port, prefix=terminal) as host:
        await_size(run, 2)
        host.read_until("this host has joined the job with 1 slot")
        stop(run, tmp_path)
        assert "the job has ended" in ended(host, 0).out


def test_a_job_refuses_more_spare_hosts_than_it_may_need(tmp_path: Path) -> None:
    patient = ("--start-timeout", "5min")
    with contextlib.ExitStack() as stack:
        # All places are taken on the machine of the launcher, so every host is a spare.
        run, port = stack.enter_context(job(tmp_path, "1:1", *patient))
        await_size(run, 1)
        hosts = [stack.enter_context(joining(tmp_path, port, *patient)) for _ in range(65)]
        wait_until(lambda: any(host.process.poll() is not None for host in hosts), 120, "one host is refused")
        (refused,) = [host for host in hosts if host.process.poll() is not None]
        said = ended(refused, 1).out
        assert "is refused: 64 hosts that have joined wait for a place already; join when others have left" in said
        # When one leaves, another one may come.
        (left, *others) = [host for host in hosts if host is not refused]
        left.read_until("this host has joined the job")
        left.process.terminate()
        ended(left, 0)
        late = stack.enter_context(joining(tmp_path, port, *patient))
        late.read_until("this host has joined the job with 1 slot, of which 1 is not used")
        stop(run, tmp_path)
        for host in (*others, late):
            ended(host, 0)


def test_a_full_job_keeps_a_host_as_a_spare(tmp_path: Path) -> None:
    with job(tmp_path, "1:2") as (run, port), joining(tmp_path, port) as first:
        await_size(run, 2)
        with joining(tmp_path, port) as spare:
            said, _ = spare.read_until(r"this host has joined the job with 1 slot, of which 1 (.*)")
            assert said[1] == f"is not used: all places for 2 ranks are taken (elastic.max), as {THIRD}", said[1]
            first.process.kill()
            seats = await_size(run, 2)
            assert seats[1][1] == THIRD
            stop(run, tmp_path)
            ended(spare, 0)


def test_a_job_waits_for_the_hosts_that_it_needs_and_tells_how_it_fails(tmp_path: Path) -> None:
    options = ("-np", "2", "-H", f"{HERE}:1", "--reset-limit", "0", "--failure-grace", "100ms")
    with job(tmp_path, "1:3", *options) as (run, port), joining(tmp_path, port) as host:
        await_size(run, 2)
        (tmp_path / "fail.0").touch()
        assert run.finish(30).code == 1
        said = ended(host, 1).out
    assert "the job has failed: the ranks have changed more than 0 times (elastic.reset_limit)" in said, said


def test_a_host_that_the_ranks_cannot_reach_learns_why(hosts: Hosts, tmp_path: Path) -> None:
    near, far = hosts.inside(hosts.near), hosts.inside(hosts.far)
    with job(tmp_path, "1:2", "-H", "localhost:1", prefix=near) as (run, port):
        await_size(run, 1)
        with joining(tmp_path, port, address=hosts.near_address, prefix=far) as host:
            said = ended(host, 1).out
        text = "cannot reach the ranks on localhost; start the job with this machine by its host name"
        assert text in said, said
        run.read_until(f"{text}.*; the job goes on without this host")
        stop(run, tmp_path)


def test_a_host_joins_from_another_machine(hosts: Hosts, tmp_path: Path) -> None:
    near, far = hosts.inside(hosts.near), hosts.inside(hosts.far)
    with job(tmp_path, "1:2", prefix=near) as (run, port):
        await_size(run, 1)
        with joining(tmp_path, port, address=hosts.near_address, prefix=far) as host:
            seats = await_size(run, 2)
            assert seats[1][1:] == (SECOND, 0)  # the first rank of its machine
            stop(run, tmp_path)
            ended(host, 0)


def test_a_host_that_cannot_reach_the_coordinator_learns_why(hosts: Hosts, tmp_path: Path) -> None:
    near, far = hosts.inside(hosts.near), hosts.inside(hosts.far)
    with job(tmp_path, "1:2", "--rendezvous-address", "127.0.0.1", prefix=near) as (run, port):
        await_size(run, 1)
        with joining(tmp_path, port, address=hosts.near_address, prefix=far) as host:
            said = ended(host, 1).out
        assert f"host {SECOND} cannot connect to the coordinator here (127.0.0.1:" in said, said
        assert "--rendezvous-address" in said
        stop(run, tmp_path)


def test_a_wrong_secret_and_a_port_without_a_job(tmp_path: Path) -> None:
    with job(tmp_path, "1:2") as (run, port):
        await_size(run, 1)
        env = {"SIRTAKI_JOIN_SECRET": "a" * 64}
        done = launch("--join", f"127.0.0.1:{port}", env=env)
        assert done.code == 1
        assert "wrong job secret" in done.err
        assert "--secret-file" in done.err, done.err
        stop(run, tmp_path)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = launch("--join", f"127.0.0.1:{unused.getsockname()[1]}", "--start-timeout", "100ms", env=env)
    assert done.code == 1
    assert "cannot reach a job at 127.0.0.1:" in done.err
    assert "--join-port" in done.err, done.err


def test_a_host_waits_for_the_secret_of_the_job(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with joining(tmp_path, port) as host:
            host.read_until("waiting for .*secret")
            secret = tmp_path / "new"
            secret.touch(mode=0o600)
            secret.write_text("ab" * 32)
            secret.rename(tmp_path / "secret")
            host.read_until(f"waiting for the job at 127.0.0.1:{port}")
            host.process.terminate()
            assert host.finish(30).code == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--join-port", "0", "python"), "--join-port needs --elastic MIN:MAX"),
        (("--join-port", "0", "--elastic", "2:", "python"), "--join-port needs --elastic MIN:MAX"),
        (
            ("--join-port", "0", "--elastic", "1:2", "python"),
            "give --secret-file FILE, which is written if it does not",
        ),
        (("--join", "host"), "--join host: "),
        (("--join", "host:1"), "the secret of the job is missing; give --secret-file FILE, the file of the launcher"),
        (
            ("--join", "host:1", "--secret-file", "/no/such/file", "--start-timeout", "10ms"),
            "--secret-file: cannot open secret file /no/such/file",
        ),
    ],
)
def test_command_lines_that_lack_something(options: tuple[str, ...], text: str) -> None:
    done = launch(*options)
    assert done.code == 2
    assert re.search(re.escape(text), done.err), done.err


def test_the_secret_does_not_reach_the_ranks(tmp_path: Path) -> None:
    env = {"SIRTAKI_JOIN_SECRET": "ab" * 32}
    done = launch("--elastic", "1:2", "--join-port", "0", "env", env=env)
    assert f"SIRTAKI_JOIN_SECRET=... sirtakirun --join {HERE}:" in done.err, done.err
    assert os.environ.get("PATH", "") in done.out
    assert "SIRTAKI_JOIN_SECRET" not in done.out
