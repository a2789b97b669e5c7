"""Sessions over time, deaths of ranks, sirtaki.run()."""

from __future__ import annotations

import time
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
    done = launch(3, str(script), limit=60)
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
    done = launch(2, str(script))
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
