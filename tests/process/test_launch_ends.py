"""Ends of a run: ranks killed, launcher killed, Ctrl-C. No process may be left behind in any case."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launch_support import PYTHON, WAIT_FOREVER, Run, launch, launcher_path, running, wait_until

LIMIT = 5.0  # seconds from a failure or Ctrl-C to the end of all processes
# A rank with one child in its process group, one in another group, and one in another session.
FAMILY = (
    "import subprocess, signal\n"
    "for options in ({}, {'process_group': 0}, {'start_new_session': True}):\n"
    "    subprocess.Popen(['sleep', '1000'], **options)\n"
    "print('up', flush=True)\n" + WAIT_FOREVER
)
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n" + WAIT_FOREVER
SAVES = (
    "import signal, sys\n"
    "def save(*_):\n"
    "    print('saved', flush=True)\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('up', flush=True)\n" + WAIT_FOREVER
)


def wait_for_family(run: Run, ranks: int = 2) -> None:
    wait_until(lambda: len(run.ranks()) == 4 * ranks, 20, "all processes of the family run")


def rank_of(pid: int) -> int:
    """Returns the rank to which a process belongs."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(int(entry.partition(b"=")[2]) for entry in entries if entry.startswith(b"SIRTAKI_JOB_RANK="))


def agents(run: Run, name: str) -> list[int]:
    """Returns the pids of the agents ("sirtakirun") or supervisors ("sirtaki-warden") of a run."""
    found = []
    for pid, command in run.marked().items():
        if "--agent" in command and Path(f"/proc/{pid}/comm").read_text().strip() == name:
            found.append(pid)
    return found


def test_kill_9_of_the_launcher_leaves_nothing() -> None:
    with running("-np", "2", PYTHON, "-c", FAMILY) as run:
        wait_for_family(run)
        run.process.kill()
        wait_until(lambda: not run.marked(), LIMIT, "everything ends")


def test_kill_9_of_launcher_and_ranks_that_ignore_sigterm() -> None:
    with running("-np", "2", PYTHON, "-c", STUBBORN) as run:
        wait_until(lambda: len(run.ranks()) == 2, 20, "both ranks run")
        run.process.kill()
        wait_until(lambda: not run.marked(), LIMIT, "everything ends")


def test_kill_9_of_the_agent_leaves_nothing_and_names_the_host() -> None:
    with running("-np", "2", PYTHON, "-c", FAMILY) as run:
        wait_for_family(run)
        (agent,) = agents(run, "sirtakirun")
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: not run.marked(), LIMIT, "everything ends")
        done = run.finish()
        assert done.code != 0
        assert "localhost" in done.err
        assert "agent" in done.err


def test_kill_9_of_the_supervisor_leaves_nothing() -> None:
    with running("-np", "2", PYTHON, "-c", FAMILY) as run:
        wait_for_family(run)
        (supervisor,) = agents(run, "sirtaki-warden")
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not run.marked(), LIMIT, "everything ends")
        assert run.finish().code != 0


def test_kill_9_of_launcher_and_agent_at_once_leaves_nothing() -> None:
    with running("-np", "2", PYTHON, "-c", FAMILY) as run:
        wait_for_family(run)
        (agent,) = agents(run, "sirtakirun")
        run.process.kill()
        with suppress(ProcessLookupError):  # it ends with the launcher
            os.kill(agent, signal.SIGKILL)
        wait_until(lambda: not run.marked(), LIMIT, "everything ends")


def test_kill_9_of_a_rank_ends_the_job_and_names_it() -> None:
    with running("-np", "3", PYTHON, "-c", FAMILY) as run:
        wait_for_family(run, 3)
        victim = next(pid for pid in run.ranks() if rank_of(pid) == 1)
        begin = time.monotonic()
        os.kill(os.getsid(victim), signal.SIGKILL)
        done = run.finish()
        assert time.monotonic() - begin < LIMIT
        assert not run.marked()
        assert done.code == 137
        assert "rank 1 on localhost: killed by signal 9 (Killed)" in done.err


def test_survivors_have_a_moment_to_say_what_they_saw() -> None:
    script = (
        "if [ $SIRTAKI_JOB_RANK = 0 ]; then echo broken >&2; exit 4; fi; sleep 1; echo I saw rank 0 die >&2; exit 1"
    )
    done = launch("-np", "2", "sh", "-c", script)
    assert done.code == 4
    assert "[1!] I saw rank 0 die" in done.err
    assert "the first to fail was rank 0" in done.err


def test_ranks_that_do_not_end_are_killed_in_time() -> None:
    script = f"import os, sys\nif os.environ['SIRTAKI_JOB_RANK'] == '0': sys.exit(5)\n{STUBBORN}"
    done = launch("-np", "3", PYTHON, "-c", script)
    assert done.code == 5
    assert done.seconds < LIMIT + 1  # includes the start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_ranks_save_and_end(number: signal.Signals) -> None:
    with running("-np", "2", PYTHON, "-c", SAVES) as run:
        assert run.process.stdout is not None
        started = {run.process.stdout.readline(), run.process.stdout.readline()}
        assert started == {b"[0] up\n", b"[1] up\n"}
        begin = time.monotonic()
        run.process.send_signal(number)
        done = run.finish()
        assert time.monotonic() - begin < 2
        assert done.code == 128 + number
        assert sorted(done.out.splitlines()) == ["[0] saved", "[1] saved"]
        assert not run.marked()


def test_ctrl_c_kills_ranks_that_ignore_it_within_the_limit() -> None:
    with running("-np", "2", PYTHON, "-c", STUBBORN) as run:
        assert run.process.stdout is not None
        run.process.stdout.readline()
        run.process.stdout.readline()
        begin = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        done = run.finish()
        assert time.monotonic() - begin < LIMIT
        assert done.code == 130
        assert not run.marked()


def test_a_second_ctrl_c_kills_at_once() -> None:
    with running("-np", "2", PYTHON, "-c", STUBBORN) as run:
        assert run.process.stdout is not None
        assert run.process.stderr is not None
        run.process.stdout.readline()
        run.process.stdout.readline()
        run.process.send_signal(signal.SIGINT)
        assert b"interrupted" in run.process.stderr.readline()
        begin = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        assert run.finish().code == 130
        assert time.monotonic() - begin < 1.5
        assert not run.marked()


def test_a_stopped_rank_is_killed_too() -> None:
    with running("-np", "2", PYTHON, "-c", STUBBORN) as run:
        wait_until(lambda: len(run.ranks()) == 2, 20, "both ranks run")
        os.kill(run.ranks()[0], signal.SIGSTOP)
        begin = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        assert run.finish().code == 143
        assert time.monotonic() - begin < LIMIT
        assert not run.marked()


def test_closed_output_ends_the_run() -> None:
    with running("-np", "1", "sh", "-c", "while :; do echo y; done") as run:
        assert run.process.stdout is not None
        run.process.stdout.readline()
        run.process.stdout.close()
        run.process.stdout = None
        assert run.finish().code == 141
        assert not run.marked()


def test_children_from_before_the_launcher_are_left_alone() -> None:
    # A shell script starts a helper and then replaces itself by sirtakirun.
    script = 'sleep 1000 >/dev/null 2>&1 & echo $!; exec "$0" -np 1 true'
    with running("-c", script, launcher_path(), program="/bin/sh") as run:
        done = run.finish()
        helper = int(done.out)
        assert done.code == 0
        assert list(run.marked()) == [helper]


def test_a_job_inside_a_job_has_its_own_ranks() -> None:
    script = f"{launcher_path()} -np 2 sh -c 'echo $SIRTAKI_JOB_RANK of $SIRTAKI_JOB_SIZE'"
    done = launch("-np", "1", "sh", "-c", script)
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == ["[0] [0] 0 of 2", "[0] [1] 1 of 2"]


def test_a_failure_is_not_hidden_by_ranks_that_end_well() -> None:
    script = "[ $SIRTAKI_JOB_RANK = 2 ] && exit 3; exit 0"
    for _ in range(10):
        assert launch("-np", "3", "sh", "-c", script).code == 3
