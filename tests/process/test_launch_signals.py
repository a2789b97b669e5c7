"""Signals to the launcher: forwarding to the ranks, stop and continue, and the grace period after SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launch_support import PYTHON, WAIT_FOREVER, Run, first_line, running, wait_until

#: Prints each signal, and ends after the first SIGUSR1 or SIGUSR2.
TELLS = (
    "import signal, sys\n"
    "def tell(number, _):\n"
    "    print('got', signal.Signals(number).name, flush=True)\n"
    "    sys.exit(0)\n"
    "for number in (signal.SIGUSR1, signal.SIGUSR2):\n"
    "    signal.signal(number, tell)\n"
    "print('up', flush=True)\n" + WAIT_FOREVER
)
#: Waits for its program as `conda run` does: descriptors closed, no signal handlers.
WRAPPER = "import subprocess, sys\nsys.exit(subprocess.run(sys.argv[1:], close_fds=True).returncode)\n"
#: Takes 6 s to save, well within the grace period of 30 s.
SAVES_SLOWLY = (
    "import signal, sys, threading\n"
    "def save(*_):\n"
    "    print('saving', flush=True)\n"
    "    threading.Event().wait(6)\n"
    "    print('saved', flush=True)\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('up', flush=True)\n" + WAIT_FOREVER
)
HANDLES_AND_STAYS = (
    "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\nprint('up', flush=True)\n" + WAIT_FOREVER
)
IGNORES = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n" + WAIT_FOREVER


def wait_for_lines(run: Run, count: int) -> list[str]:
    return sorted(first_line(run) for _ in range(count))


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("prefix", [(), (PYTHON, "-c", WRAPPER)])
def test_the_warning_of_a_scheduler_reaches_every_rank(number: signal.Signals, prefix: tuple[str, ...]) -> None:
    with running("-np", "2", *prefix, PYTHON, "-c", TELLS) as run:
        wait_for_lines(run, 2)
        run.process.send_signal(number)
        done = run.finish()
        assert done.code == 0, done.err
        assert sorted(done.out.splitlines()) == [f"[{rank}] got {number.name}" for rank in range(2)]


def test_a_warning_to_all_processes_of_the_job_ends_none_of_ours() -> None:
    with running("-np", "1", PYTHON, "-c", TELLS.replace("sys.exit(0)", "None")) as run:
        wait_for_lines(run, 1)
        ours = [run.process.pid, *(pid for pid in run.marked() if pid not in run.ranks())]
        assert len(ours) == 3
        for pid in ours:
            os.kill(pid, signal.SIGUSR1)
        assert first_line(run) == "[0] got SIGUSR1\n"
        assert set(ours) - {run.process.pid} <= set(run.marked())
        run.process.send_signal(signal.SIGTERM)
        assert run.finish().code == 143


def test_ranks_that_would_die_of_the_warning_are_spared_and_named() -> None:
    with running("-np", "2", PYTHON, "-c", IGNORES) as run:
        wait_for_lines(run, 2)
        run.process.send_signal(signal.SIGUSR1)
        assert run.process.stderr is not None
        told = run.process.stderr.readline().decode()
        assert "SIGUSR1" in told
        assert "rank 0, 1" in told
        assert len(run.ranks()) == 2


def test_the_whole_job_stops_and_goes_on() -> None:
    with running("-np", "2", PYTHON, "-c", "import subprocess\nsubprocess.Popen(['sleep', '1000'])\n" + TELLS) as run:
        wait_for_lines(run, 2)
        ranks = run.ranks()
        assert len(ranks) == 4
        run.process.send_signal(signal.SIGTSTP)
        wait_until(lambda: state(run.process.pid) == "T", 20, "the launcher stands still")
        wait_until(lambda: [state(pid) for pid in ranks] == ["T"] * 4, 20, "the ranks stand still")
        run.process.send_signal(signal.SIGCONT)
        wait_until(lambda: "T" not in [state(pid) for pid in ranks], 20, "the ranks go on")
        run.process.send_signal(signal.SIGUSR1)
        assert run.finish().code == 0


@pytest.mark.parametrize("prefix", [(), (PYTHON, "-c", WRAPPER)])
def test_ranks_that_handle_sigterm_have_the_time_that_is_announced(prefix: tuple[str, ...]) -> None:
    with running("-np", "2", *prefix, PYTHON, "-c", SAVES_SLOWLY) as run:
        wait_for_lines(run, 2)
        run.process.send_signal(signal.SIGTERM)
        assert wait_for_lines(run, 2) == ["[0] saving\n", "[1] saving\n"]
        run.process.send_signal(signal.SIGTERM)  # `timeout` and schedulers send SIGTERM twice
        done = run.finish()
        assert done.code == 143
        assert "have 30s to end" in done.err
        assert sorted(done.out.splitlines()) == ["[0] saved", "[1] saved"]


def test_everybody_may_send_sigterm_at_once() -> None:
    # A scheduler sends SIGTERM to all processes of a job.
    with running("-np", "1", PYTHON, "-c", SAVES_SLOWLY) as run:
        wait_for_lines(run, 1)
        for pid in [run.process.pid, *(pid for pid in run.marked() if pid not in run.ranks())]:
            os.kill(pid, signal.SIGTERM)
        done = run.finish()
        assert done.out.splitlines() == ["[0] saving", "[0] saved"]
        assert done.code == 143


def test_the_time_after_sigterm_is_an_option() -> None:
    with running("-np", "2", "--term-grace", "1s", PYTHON, "-c", HANDLES_AND_STAYS) as run:
        wait_for_lines(run, 2)
        begin = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        done = run.finish()
        assert "have 1s to end" in done.err
        assert 1 <= time.monotonic() - begin < 20
        assert done.code == 143


def test_ranks_that_do_not_handle_sigterm_get_no_time() -> None:
    with running("-np", "2", PYTHON, "-c", IGNORES) as run:
        wait_for_lines(run, 2)
        begin = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        assert run.finish().code == 143
        assert time.monotonic() - begin < 20
