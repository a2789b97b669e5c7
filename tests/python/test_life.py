"""Sessions over time, deaths of ranks, and sirtaki.run()."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rank_support import case_names, check_case, launch

pytest.importorskip("torch")


@pytest.mark.parametrize("case", case_names("life_cases"))
@pytest.mark.parametrize("np", [1, 2])
def test_life(np: int, case: str) -> None:
    check_case("life_cases", np, case)


DYING = """
import os, signal, sys, time, torch, sirtaki
import sirtaki.torch as hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
try:
    while True:
        hvd.allreduce(torch.ones(1000), name="x")
except sirtaki.HorovodInternalError as error:
    print(f"SURVIVOR {hvd.rank()} {time.monotonic() - begin:.2f} {error.rank} {error}", flush=True)
    sys.exit(3)
"""


DYING_BEFORE_FORWARD = """
import os, signal, sys, time, torch, sirtaki
import sirtaki.torch as hvd
hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Linear(50, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), sync="forward")
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.ones(1, 50)).sum()
    if step == 2 and hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    optimizer.step()
begin = time.monotonic()
try:
    model(torch.ones(1, 50))
except sirtaki.HorovodInternalError as error:
    print(f"SURVIVOR {hvd.rank()} {time.monotonic() - begin:.2f} {error.rank} {error}", flush=True)
    sys.exit(3)
"""


@pytest.mark.parametrize("program", [DYING, DYING_BEFORE_FORWARD], ids=["allreduce", "forward"])
def test_survivors_name_the_dead_rank_within_a_second(tmp_path: Path, program: str) -> None:
    script = tmp_path / "dying.py"
    script.write_text(program)
    done = launch(3, str(script), limit=60, warm=True)
    told = [line[line.index("SURVIVOR") :].split() for line in done.stdout.splitlines() if "SURVIVOR" in line]
    assert sorted(words[1] for words in told) == ["0", "2"], done.stdout
    for words in told:
        assert float(words[2]) < 1.5
        assert words[3] == "1"
    assert done.returncode != 0


CYCLES = """
import time, torch
import sirtaki.torch as hvd
begin = time.monotonic()
for cycle in range(200):
    hvd.init()
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum, name="x")[0] == 2
    hvd.shutdown()
print(f"CYCLED {time.monotonic() - begin:.1f}", flush=True)
"""


def test_two_hundred_sessions_one_after_another_take_seconds(tmp_path: Path) -> None:
    script = tmp_path / "cycles.py"
    script.write_text(CYCLES)
    done = launch(2, str(script), warm=True)
    took = [float(line.split()[-1]) for line in done.stdout.splitlines() if "CYCLED" in line]
    print(f"200 sessions of 2 ranks took {took} s")
    assert done.returncode == 0, done.stdout
    assert len(took) == 2, done.stdout
    assert max(took) < 30, done.stdout


LEFT_BEHIND = """
import sys, torch
import sirtaki.torch as hvd
hvd.init()
if hvd.rank() == 0:
    left = [hvd.allreduce_async(torch.ones(3), name="never")]
    left.append(left)
    sys.modules["left"] = left
    del left
hvd.shutdown()
"""


def test_a_handle_that_is_left_to_the_interpreters_end_does_not_keep_it(tmp_path: Path) -> None:
    script = tmp_path / "left.py"
    script.write_text(LEFT_BEHIND)
    assert launch(2, str(script), limit=60).returncode == 0


def test_run_returns_results_by_rank() -> None:
    import sirtaki

    def work(base: int, *, factor: int) -> tuple[int, float]:
        import torch

        import sirtaki.torch as hvd

        hvd.init()
        total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
        return base + factor * hvd.rank(), total

    assert sirtaki.run(work, args=(10,), kwargs={"factor": 2}, np=3) == [(10, 3.0), (12, 3.0), (14, 3.0)]


def test_run_names_the_rank_that_raised() -> None:
    import sirtaki

    def work() -> None:
        import sirtaki.torch as hvd

        hvd.init()
        hvd.barrier()
        if hvd.rank() == 1:
            raise KeyError("broken on purpose")
        hvd.barrier()

    begin = time.monotonic()
    with pytest.raises(sirtaki.RankFailedError, match="broken on purpose") as caught:
        sirtaki.run(work, np=2)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, KeyError)
    assert time.monotonic() - begin < 60


def test_run_names_the_rank_that_died() -> None:
    import sirtaki

    def work() -> None:
        import os
        import signal

        import sirtaki.torch as hvd

        hvd.init()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    with pytest.raises(sirtaki.RankFailedError):
        sirtaki.run(work, np=2)


class ShardError(Exception):
    """An exception that can be pickled but not unpickled: its constructor needs arguments that the pickle lacks."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"bad record in {path} at line {line}")


class LockedError(Exception):
    """An exception that cannot be pickled, because it holds a lock."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def raises_shard_error() -> None:
    raise ShardError("part-7", 13)


def raises_locked_error() -> None:
    raise LockedError("bad record in part-7")


def exits_with_a_text() -> None:
    sys.exit("bad record in part-7")


def returns_a_lock() -> object:
    return threading.Lock()


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (raises_shard_error, ["bad record in part-7 at line 13", "raises_shard_error", "cannot be unpickled"]),
        (raises_locked_error, ["bad record in part-7", "raises_locked_error", "cannot be pickled"]),
        (exits_with_a_text, ["bad record in part-7", "exits_with_a_text"]),
        (returns_a_lock, ["rank 0", "result cannot be pickled"]),
    ],
)
def test_run_tells_as_text_what_cannot_be_pickled(work: Callable[[], object], words: list[str]) -> None:
    import sirtaki

    with pytest.raises(sirtaki.RankFailedError) as caught:
        sirtaki.run(work, np=1, env={"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])})
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert caught.value.rank == 0


def test_run_ends_ranks_at_its_timeout_even_if_they_handle_sigterm(tmp_path: Path) -> None:
    import sirtaki

    def work(folder: str) -> None:
        import os
        import signal

        signal.signal(signal.SIGTERM, lambda *_: None)
        with open(os.path.join(folder, "pid"), "w") as out:
            out.write(str(os.getpid()))
        while True:
            signal.pause()

    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        sirtaki.run(work, (str(tmp_path),), np=1, timeout=20)
    assert time.monotonic() - begin < 45
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


PROGRESS = """
import sirtaki, sirtaki.torch as hvd
hvd.init()
progress = sirtaki.Progress(steps_per_epoch=2, samples_per_step=1)
for _ in range(2):
    progress.step(0, 0.5)
hvd.shutdown()
"""


def test_progress_shows_its_line_when_the_launcher_writes_to_a_terminal() -> None:
    def shown(command: list[str]) -> str:
        ours, theirs = os.openpty()
        try:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, timeout=90, check=True
            )
        finally:
            os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # EIO marks the end of a terminal's output
            while part := os.read(ours, 65536):
                text += part
        os.close(ours)
        return text.decode()

    launcher = [str(Path(sys.executable).with_name("sirtakirun")), "-np", "2"]
    assert "epoch 1  step 2/2  loss 0.5000" in shown([*launcher, sys.executable, "-c", PROGRESS])
    elsewhere = f'{sys.executable} -c "$0" 2> /dev/null'
    assert "epoch 1" not in shown([*launcher, "sh", "-c", elsewhere, PROGRESS])


TRAINED = """
import sys, torch, sirtaki
import sirtaki.torch as hvd

def main(how):
    hvd.init()
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression="int8:min=1")
    progress = sirtaki.Progress(steps_per_epoch=3, samples_per_step=2, optimizer=optimizer)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        progress.step(0, 1.0)
    if how == "progress":
        progress.end()
    if how == "shutdown":
        hvd.shutdown()
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "error":
        raise ValueError("on purpose")
    if how == "exit":
        sys.exit(7)

main(sys.argv[1])
"""


@pytest.mark.parametrize("how", ["return", "shutdown", "progress", "exit", "error", "interrupt"])
def test_a_training_ends_with_one_report(how: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAINED)
    done = launch(2, str(program), how, warm=how in ("return", "shutdown", "progress"))
    reports = 0 if how == "error" else 1
    # The launcher repeats the last lines of a failing rank without "[0!]", so the prefix makes each report count once.
    assert done.stdout.count("[0!]   exposed communication  ") == reports, done.stdout
    assert done.stdout.count("[0!]   weight  int8  ") == reports, done.stdout
    codes = {"return": 0, "shutdown": 0, "progress": 0, "exit": 7, "error": 1, "interrupt": 130}
    assert done.returncode == codes[how], done.stdout


def test_a_training_ends_without_a_report_where_none_is_wanted(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAINED)
    done = launch(2, str(program), "return", variables=(("SIRTAKI_REPORT_END", "false"),), warm=True)
    assert done.returncode == 0, done.stdout
    assert "exposed communication  " not in done.stdout
