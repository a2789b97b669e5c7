"""Programs in warm interpreters: each is as isolated, and ends in the same way, as in a new interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rank_support import check_case, environment, launch, pool

pytest.importorskip("torch")

LIMIT_SECONDS = 90


def warm(program: str, *arguments: str, np: int = 1) -> subprocess.CompletedProcess[str]:
    return launch(np, "-c", program, *arguments, limit=LIMIT_SECONDS, warm=True)


def test_a_program_finds_its_framework_arguments_and_place() -> None:
    done = warm(
        "import sys\n"
        "loaded = 'torch' in sys.modules\n"
        "import os, sirtaki\n"
        "sirtaki.init()\n"
        "print('FOUND', loaded, sys.argv[1:], sirtaki.rank(), sirtaki.size(), os.path.basename(os.getcwd()))",
        "one",
        "two words",
        np=2,
    )
    assert done.returncode == 0, done.stdout
    for rank in (0, 1):
        assert f"[{rank}] FOUND True ['one', 'two words'] {rank} 2 python" in done.stdout


def test_ranks_that_any_command_starts_are_warm_if_a_test_asks_for_it(warm_ranks: None) -> None:
    del warm_ranks
    program = "import os, sys; print('FOUND', 'torch' in sys.modules, len(os.sched_getaffinity(0)), *sys.argv[1:])"
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        for options, found in (((), "True"), (("-x", "OMP_NUM_THREADS=3"), "False")):
            done = launch(2, "-c", program, "an argument", limit=LIMIT_SECONDS, options=options)
            for rank in (0, 1):
                assert f"[{rank}] FOUND {found} 1 an argument" in done.stdout, done.stdout
    finally:
        os.sched_setaffinity(0, processors)
    alone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "FOUND False" in alone.stdout


def test_nothing_of_a_program_is_there_in_the_next() -> None:
    change = (
        "import os, sys, torch\n"
        "there = 'LEFT' in os.environ, hasattr(torch, 'left'), 'left' in sys.modules\n"
        "print('BEFORE', *there, torch.get_default_dtype())\n"
        "os.environ['LEFT'] = '1'\n"
        "torch.left = sys.modules['left'] = 1\n"
        "torch.set_default_dtype(torch.float64)\n"
    )
    for _ in range(2):
        assert "BEFORE False False False torch.float32" in warm(change).stdout


def test_ranks_differ_in_what_an_interpreter_draws_at_its_start() -> None:
    done = warm("import numpy; print('DRAWN', hash('a'), numpy.random.random())", np=2)
    drawn = [line.split()[-2:] for line in done.stdout.splitlines() if "DRAWN" in line]
    assert len({seed for seed, _ in drawn}) == 2, done.stdout
    assert len({number for _, number in drawn}) == 2, done.stdout


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("import atexit; atexit.register(print, 'THE END')", 0, "THE END"),
        ("import sys; sys.exit(7)", 7, "exit code 7"),
        ("raise ValueError('on purpose')", 1, "ValueError: on purpose"),
        ("import os; os._exit(9)", 9, "exit code 9"),
        ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL, "signal 9"),
        ("import os; os.kill(os.getpid(), 11)", 128 + signal.SIGSEGV, "signal 11"),
    ],
)
def test_an_end_is_told_as_that_of_an_interpreter_and_the_next_program_runs(how: str, code: int, said: str) -> None:
    done = warm(how)
    assert done.returncode == code, done.stdout
    assert said in done.stdout
    assert "NEXT" in warm("print('NEXT')").stdout


def test_a_program_ends_with_its_rank(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    # The second rank dies while the first waits; the launcher then ends the first.
    program = (
        "import os, signal, sys\n"
        "if os.environ['SIRTAKI_JOB_RANK'] == '1':\n"
        "    open(sys.argv[1]).read(1)\n"
        "    os._exit(3)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "held = open(sys.argv[1], 'w')\n"
        "held.write('x')\n"
        "held.flush()\n"
        "signal.pause()\n"
    )
    assert warm(program, str(fifo), np=2).returncode == 3
    # End of file: the last writer, the fork of the first rank, is gone too.
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize("module", ["warm_crash_cases", "warm_hang_cases"])
def test_a_module_that_breaks_its_job_breaks_no_other(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rank_support.LIMIT_SECONDS", 25)
    check_case(f"warm.{module}", 2, "case_before")
    with pytest.raises(AssertionError, match="rank 0 never finished case_break"):
        check_case(f"warm.{module}", 2, "case_break")
    check_case("warm.warm_next_cases", 2, "case_sum", variables=(("SIRTAKI_REPORT_END", "false"),))


def test_a_server_that_fails_to_import_says_why() -> None:
    from warm import CLIENT, Server

    path = pool().folder / "broken"
    server = Server(path, ("no_such_module",), environment())
    assert server.process.wait(LIMIT_SECONDS) != 0
    done = subprocess.run([*CLIENT, path, path, "-c", ""], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "No module named 'no_such_module'" in done.stderr


def test_a_variable_that_an_import_may_read_gets_an_interpreter_of_its_own() -> None:
    plain = environment()
    assert "client.py" in " ".join(pool().command(("-c", "import torch"), plain))
    assert "client.py" in " ".join(pool().command(("-c", "import torch"), {**plain, "SIRTAKI_NET_HIERARCHY": "off"}))
    fresh = pool().command(("-c", "import torch"), {**plain, "LD_PRELOAD": "x.so"})
    assert fresh == (sys.executable, "-c", "import torch")
