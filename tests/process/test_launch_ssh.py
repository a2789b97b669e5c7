"""sirtakirun over real ssh: two network namespaces, a server with keys of its own, ranks on both sides."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launch_support import PYTHON, WAIT_FOREVER, Outcome, Run, launch, launcher_path, running, wait_until
from ssh_hosts import Hosts, unavailable_reason

REASON = unavailable_reason()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

LIMIT = 5.0
FAMILY = (
    "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\nprint('up', flush=True)\n"
    + WAIT_FOREVER
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts.of_a_test(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def launch_near(hosts: Hosts, *arguments: str, timeout: float = 40.0, **options: object) -> Outcome:
    done = launch(*arguments, prefix=hosts.inside(hosts.near), timeout=timeout, **options)
    wait_until(lambda: not hosts.pids(hosts.far), LIMIT, "the far host is empty")
    return done


def both(hosts: Hosts, near: int = 1, far: int = 1) -> tuple[str, ...]:
    return ("-H", f"{hosts.near_address}:{near},{hosts.far_address}:{far}", *hosts.arguments())


def family_runs(hosts: Hosts, run: Run) -> None:
    # A rank and its child on each host.
    wait_until(lambda: len(run.ranks()) == 4, 20, "ranks run on both hosts")
    assert len(set(run.ranks()) & set(hosts.pids(hosts.far))) == 2


def test_ranks_run_on_both_hosts_and_reach_the_coordinator(hosts: Hosts) -> None:
    script = (
        "import os, socket\n"
        "host, port = os.environ['SIRTAKI_JOB_RENDEZVOUS'].rsplit(':', 1)\n"
        "with socket.create_connection((host, int(port)), 5) as s: peer, own = s.getpeername()[0], s.getsockname()[0]\n"
        "print(os.environ['SIRTAKI_JOB_RANK'], os.environ['SIRTAKI_JOB_SIZE'], peer, own)\n"
    )
    done = launch_near(hosts, *both(hosts, 1, 2), PYTHON, "-c", script)
    assert done.code == 0, done.err
    near, far = hosts.near_address, hosts.far_address
    assert sorted(done.out.splitlines()) == [
        f"[0] 0 3 {near} {near}",
        f"[1] 1 3 {near} {far}",
        f"[2] 2 3 {near} {far}",
    ]
    assert done.err == ""  # the agent's trial of the port is no stranger


def test_a_missing_folder_is_named_with_the_fix(hosts: Hosts, tmp_path: Path) -> None:
    here = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount -t tmpfs none {tmp_path} && mkdir {tmp_path}/a && cd {tmp_path}/a && exec "$@"',
        "sh",
    )
    arguments = (*both(hosts), "true")
    done = launch(*arguments, prefix=(*hosts.inside(hosts.near), *here), timeout=40.0)
    assert done.code == 1
    assert f"host {hosts.far_address}: the working directory '{tmp_path}/a' cannot be entered" in done.err
    assert "every host needs the program and its data in a folder with the path of that" in done.err


def test_ipv6_hosts_work(hosts: Hosts) -> None:
    script = "echo $SIRTAKI_JOB_RENDEZVOUS"
    done = launch_near(hosts, "-H", f"[{hosts.far_address6}]:2", *hosts.arguments(), "sh", "-c", script)
    assert done.code == 0, done.err
    assert all(line[4:].startswith("[fd77:123::1]:") for line in done.out.splitlines()), done.out
    assert len(done.out.splitlines()) == 2


def test_environment_and_secret_are_on_no_command_line(hosts: Hosts) -> None:
    script = (
        "import os, glob\n"
        "secret = os.read(int(os.environ['SIRTAKI_JOB_SECRET_FD']), 1000).decode().strip()\n"
        "texts = []\n"
        "for path in glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    try: texts.append(open(path, 'rb').read().decode(errors='replace'))\n"
        "    except OSError: pass\n"
        "value = os.environ['LAUNCH_TEST_VALUE']\n"
        "print(len(secret), value[:2], any(secret in t or value in t for t in texts), os.getcwd())\n"
    )
    value = "v=" + "w" * 30
    done = launch_near(hosts, *both(hosts), PYTHON, "-c", script, env={"LAUNCH_TEST_VALUE": value}, cwd=hosts.folder)
    assert sorted(done.out.splitlines()) == [f"[{rank}] 64 v= False {hosts.folder}" for rank in range(2)], done.err


def test_exit_code_of_a_far_rank_is_the_jobs(hosts: Hosts) -> None:
    script = "[ $SIRTAKI_JOB_RANK = 1 ] && { echo far away >&2; exit 6; }; exec sleep 1000"
    done = launch_near(hosts, *both(hosts), "sh", "-c", script)
    assert done.code == 6
    assert f"rank 1 on {hosts.far_address}: exit code 6" in done.err
    assert "  | far away" in done.err
    assert done.seconds < LIMIT + 3


def test_kill_9_of_the_launcher_leaves_nothing_on_either_host(hosts: Hosts) -> None:
    with running(*both(hosts), PYTHON, "-c", FAMILY, prefix=hosts.inside(hosts.near)) as run:
        family_runs(hosts, run)
        run.process.kill()
        wait_until(lambda: not run.marked() and not hosts.pids(hosts.far), LIMIT, "both hosts are empty")


def test_kill_9_of_ssh_ends_the_job_and_names_the_host(hosts: Hosts) -> None:
    with running(*both(hosts), PYTHON, "-c", FAMILY, prefix=hosts.inside(hosts.near)) as run:
        family_runs(hosts, run)
        ssh = [pid for pid, command in run.marked().items() if command[0].endswith("ssh")]
        assert len(ssh) == 1
        begin = time.monotonic()
        os.kill(ssh[0], signal.SIGKILL)
        done = run.finish()
        assert time.monotonic() - begin < LIMIT
        assert done.code == 1
        assert f"rank 1 on {hosts.far_address}: lost: " in done.err
        wait_until(lambda: not run.marked() and not hosts.pids(hosts.far), LIMIT, "both hosts are empty")


def test_ctrl_c_ends_both_hosts(hosts: Hosts) -> None:
    with running(*both(hosts), PYTHON, "-c", FAMILY, prefix=hosts.inside(hosts.near)) as run:
        family_runs(hosts, run)
        begin = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        assert run.finish().code == 130
        assert time.monotonic() - begin < LIMIT
        wait_until(lambda: not run.marked() and not hosts.pids(hosts.far), 1, "both hosts are empty")


def test_signals_reach_ranks_on_the_far_host(hosts: Hosts) -> None:
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (print('got it', flush=True), sys.exit(0)))\n"
        "print('up', flush=True)\n" + WAIT_FOREVER
    )

    def states() -> set[str]:
        return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in run.ranks()}

    with running(*both(hosts), PYTHON, "-c", script, prefix=hosts.inside(hosts.near)) as run:
        assert run.process.stdout is not None
        assert {run.process.stdout.readline(), run.process.stdout.readline()} == {b"[0] up\n", b"[1] up\n"}
        run.process.send_signal(signal.SIGTSTP)
        wait_until(lambda: states() == {"T"}, 20, "ranks on both hosts stand still")
        run.process.send_signal(signal.SIGCONT)
        wait_until(lambda: "T" not in states(), 20, "ranks on both hosts go on")
        for pid, command in run.marked().items():
            if command[0].endswith("ssh"):
                os.kill(pid, signal.SIGTERM)  # a scheduler sends SIGTERM to all processes of the job
        run.process.send_signal(signal.SIGUSR1)
        done = run.finish()
        assert done.code == 0, done.err
        assert sorted(done.out.splitlines()) == ["[0] got it", "[1] got it"]


def test_a_cut_line_ends_the_job(hosts: Hosts) -> None:
    flags = hosts.arguments()
    quick = (*flags[:-1], flags[-1] + " -o ServerAliveInterval=1 -o ServerAliveCountMax=2")
    where = ("-H", f"{hosts.near_address}:1,{hosts.far_address}:1")
    with running(*where, *quick, PYTHON, "-c", FAMILY, prefix=hosts.inside(hosts.near)) as run:
        family_runs(hosts, run)
        far = hosts.pids(hosts.far)
        os.system(f"ip -n {hosts.near} link set eth0 down")
        try:
            done = run.finish()
            assert done.code == 1
            assert f"rank 1 on {hosts.far_address}: lost: " in done.err
        finally:
            os.system(f"ip -n {hosts.near} link set eth0 up")
            os.system(f"ip -n {hosts.near} address replace fd77:123::1/64 dev eth0 nodad")
        # Once the link is up again, the far side learns that its launcher is gone.
        assert far
        wait_until(lambda: not hosts.pids(hosts.far), 40, "the far host is empty")


def test_an_unreachable_host_is_named_with_the_fix(hosts: Hosts) -> None:
    where = ("-H", f"{hosts.far_address}:1,{hosts.silent_address}:1")
    done = launch_near(hosts, *where, *hosts.arguments(), "--start-timeout", "8s", "true")
    assert done.code == 1
    assert f"host {hosts.silent_address}: " in done.err
    assert "check that it is up" in done.err
    assert f"host {hosts.far_address}: " not in done.err
    assert done.seconds < 12


def test_a_host_without_ssh_server_is_named_with_the_fix(hosts: Hosts) -> None:
    done = launch_near(hosts, "-H", f"{hosts.far_address}:1", *hosts.arguments(port=9), "true")
    assert done.code == 1
    assert "--ssh-port" in done.err


def test_a_wrong_key_is_named_with_the_fix(hosts: Hosts) -> None:
    done = launch_near(hosts, "-H", f"{hosts.far_address}:1", *hosts.arguments(key="stranger"), "true")
    assert done.code == 1
    assert "Permission denied" in done.err
    assert "--ssh-identity-file" in done.err


def test_an_unknown_host_key_is_named_with_the_fix(hosts: Hosts) -> None:
    done = launch_near(hosts, "-H", f"{hosts.far_address}:1", *hosts.arguments(known="no_known_hosts"), "true")
    assert done.code == 1
    assert "confirm the key" in done.err


def test_a_missing_launcher_is_named_with_the_fix(hosts: Hosts) -> None:
    done = launch_near(hosts, *both(hosts), "--remote-path", "/no/such/sirtakirun", "true")
    assert done.code == 1
    assert "--remote-path" in done.err
    assert "/no/such/sirtakirun" in done.err


def test_another_version_is_named_with_both_numbers(hosts: Hosts, tmp_path: Path) -> None:
    fake = tmp_path / "sirtakirun"
    fake.write_text(
        f"#!{PYTHON}\n"
        "import struct, sys\n"
        "payload = struct.pack('<I', 99) + struct.pack('<I', 5) + b'0.0.7'\n"
        "frame = struct.pack('<IB', len(payload) + 1, 1) + payload\n"
        "sys.stdout.buffer.write(b'\\x01sirtaki agent\\x02' + frame)\n"
        "sys.stdout.flush()\n"
        "sys.stdin.read()\n"
    )
    fake.chmod(0o755)
    done = launch_near(hosts, *both(hosts), "--remote-path", str(fake), "true")
    assert done.code == 1
    assert "version 0.0.7" in done.err


def test_what_a_login_shell_prints_is_skipped(hosts: Hosts, tmp_path: Path) -> None:
    wrapper = tmp_path / "chatty"
    wrapper.write_text(f'#!/bin/sh\necho "Welcome to this machine"\nexec {launcher_path()} "$@"\n')
    wrapper.chmod(0o755)
    done = launch_near(hosts, *both(hosts), "--remote-path", str(wrapper), "sh", "-c", "echo fine")
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == ["[0] fine", "[1] fine"]


def test_what_is_no_agent_is_named(hosts: Hosts, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\nexec yes\n")
    other.chmod(0o755)
    done = launch_near(hosts, *both(hosts), "--remote-path", str(other), "true")
    assert done.code == 1
    assert "no agent" in done.err


def test_an_address_the_host_cannot_reach_is_named_with_the_fix(hosts: Hosts) -> None:
    done = launch_near(hosts, *both(hosts), "--rendezvous-address", "10.123.77.200", "true")
    assert done.code == 1
    assert "cannot connect to the coordinator" in done.err
    assert "--rendezvous-address" in done.err


def test_check_shows_both_hosts(hosts: Hosts) -> None:
    done = launch_near(hosts, *both(hosts), "--check")
    assert done.code == 0, done.err
    assert f"{hosts.far_address} (over ssh): rank 1" in done.out
    assert f"{hosts.near_address} (this host): rank 0" in done.out
    assert f"{hosts.far_address} (eth0)" in done.out
    assert "(reached)" in done.out
    assert "2 ranks on 2 hosts (1 + 1): tcp\n" in done.out


@pytest.mark.parametrize(
    ("options", "way"),
    [
        ((), "shared memory on a host, tcp between hosts"),
        (("--net-shared-memory", "off"), "tcp, host by host"),
        (("--net-hierarchy", "off"), "tcp"),
    ],
)
def test_check_says_how_data_will_travel(hosts: Hosts, options: tuple[str, ...], way: str) -> None:
    done = launch_near(hosts, *both(hosts, near=3), *options, "--check")
    assert f"4 ranks on 2 hosts (3 + 1): {way}\n" in done.out


def test_check_tells_good_hosts_from_bad_ones(hosts: Hosts) -> None:
    done = launch_near(hosts, *both(hosts), "--remote-path", "/no/such/sirtakirun", "--check")
    assert done.code == 1
    assert "FAILED" in done.out
    assert "1 of 2 hosts failed." in done.out


def test_large_output_crosses_the_network_whole(hosts: Hosts) -> None:
    done = launch_near(hosts, "-H", f"{hosts.far_address}:1", *hosts.arguments(), "seq", "1", "100000", timeout=60)
    assert done.code == 0
    assert done.out.splitlines() == [f"[0] {i}" for i in range(1, 100001)]
