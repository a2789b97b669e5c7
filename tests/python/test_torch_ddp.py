"""sirtaki.torch.ddp: the engine under DistributedDataParallel, by one line or by the options of the launcher."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_support import case_names, check_case, launch
from test_torch_distributed import results, with_torchrun

pytest.importorskip("torch")

HOOK = "torch_distributed.ddp_hook_cases"
BUCKETS = "torch_distributed.ddp_bucket_cases"
MISUSE = "torch_distributed.ddp_misuse_cases"
NONFINITE = "torch_distributed.ddp_nonfinite_cases"
OPTIONS = "torch_distributed.ddp_option_cases"
COMPILE = "torch_distributed.ddp_compile_cases"
LIFETIME = "torch_distributed.ddp_lifetime_cases"
LOCAL = "torch_distributed.ddp_local_cases"
LOCAL_OPTIONS = "torch_distributed.ddp_local_option_cases"


@pytest.mark.parametrize("case", case_names(HOOK))
@pytest.mark.parametrize("np", [3])
def test_results(np: int, case: str) -> None:
    check_case(HOOK, np, case)


@pytest.mark.parametrize("case", case_names(BUCKETS))
@pytest.mark.parametrize("np", [2, 3])
def test_buckets(np: int, case: str) -> None:
    check_case(BUCKETS, np, case)


@pytest.mark.parametrize("case", case_names(MISUSE))
@pytest.mark.parametrize("np", [3])
def test_misuse(np: int, case: str) -> None:
    check_case(MISUSE, np, case)


@pytest.mark.parametrize("case", case_names(COMPILE))
def test_models_compiled_in_regions(case: str) -> None:
    check_case(COMPILE, 2, case)


@pytest.mark.parametrize("case", case_names(LIFETIME))
def test_models_that_come_and_go(case: str) -> None:
    check_case(LIFETIME, 2, case)


@pytest.mark.parametrize("case", case_names(NONFINITE))
@pytest.mark.parametrize("how", ["error", "skip"])
def test_nonfinite(how: str, case: str) -> None:
    check_case(NONFINITE, 2, case, ("--compression-nonfinite", how))


@pytest.mark.parametrize("case", case_names(OPTIONS))
@pytest.mark.parametrize("np", [3])
def test_options_of_the_launcher(np: int, case: str) -> None:
    check_case(OPTIONS, np, case, ("--compression", "twobit:wire=gather"))


@pytest.mark.parametrize("case", case_names(LOCAL))
@pytest.mark.parametrize("np", [3])
def test_local_updates(np: int, case: str) -> None:
    check_case(LOCAL, np, case)


@pytest.mark.parametrize("case", case_names(LOCAL_OPTIONS))
def test_local_updates_by_an_option(case: str) -> None:
    check_case(LOCAL_OPTIONS, 2, case, ("--local-updates", "fixed:steps=4,delay=1"))


# The session comes from the store of torch's default group, twice, and ends with the program.
GLOO = """
import sys, torch, torch.distributed as dist, sirtaki
from sirtaki.torch.ddp import accelerate
dist.init_process_group("gloo")
told = []
for _ in range(2):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100, bias=False))
    handle = accelerate(model, compression="int8")
    model(torch.full((1, 100), 1.0 + dist.get_rank())).sum().backward()
    told += [model.module.weight.grad.mean().item(), handle.compression_report()[0]["codec"]]
    sirtaki.basics.shutdown()
sys.stdout.write(f"RESULT {dist.get_rank()} {told}\\n")
"""


def test_a_program_with_gloo_under_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(GLOO)
    output = with_torchrun(2, program)
    assert results(output) == [f"RESULT {rank} [1.5, 'int8', 1.5, 'int8']" for rank in range(2)], output


UNCHANGED = """
import torch, torch.distributed as dist
dist.init_process_group("sirtaki")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.ones(1, 100)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("option", ["auto", "int8"])
def test_the_report_at_the_end_of_an_unchanged_program(option: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(UNCHANGED)
    done = launch(2, str(program), options=("--compression", option), limit=60, warm=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("sirtaki: report (") == 1, done.stdout
    assert " steps                  12 in " in done.stdout, done.stdout
    assert "exposed communication" in done.stdout
    assert ("saved by compression" in done.stdout) == (option == "int8"), done.stdout
    assert "has no effect" not in done.stdout


def test_options_without_effect_are_told_what_gives_them_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(UNCHANGED.replace('"sirtaki"', '"gloo"'))
    done = launch(2, str(program), options=("--compression", "auto"), limit=60, warm=True)
    assert done.returncode == 0, done.stdout
    assert 'compression.codec ("auto") has no effect' in done.stdout
    assert 'call init_process_group("sirtaki"), or sirtaki.torch.ddp.accelerate(model, optimizer)' in done.stdout


# The last rank stops before its backward: in the first one, or after some.
LATE = """
import datetime, sys, threading, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from sirtaki.torch.ddp import accelerate
dist.init_process_group(sys.argv[1], timeout=datetime.timedelta(seconds=2))
model = DistributedDataParallel(torch.nn.Linear(100, 100))
accelerate(model, compression="int8")
for _ in range(int(sys.argv[2])):
    model(torch.ones(1, 100)).sum().backward()
if dist.get_rank() == 1:
    threading.Event().wait(60)
try:
    model(torch.ones(1, 100)).sum().backward()
except RuntimeError as error:
    sys.stdout.write(f"RESULT {' '.join(str(error).split())}\\n")
    sys.stdout.flush()
    sys.exit(3)
"""


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("backend", ["sirtaki", "gloo"])
def test_the_timeout_of_the_group_ends_a_backward_that_a_rank_never_joins(
    backend: str, steps: int, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(LATE)
    told = results(launch(2, str(program), backend, str(steps), limit=60, warm=True).stdout)
    assert len(told) == 1
    assert "weight and the other parameters of the model are not combined after 2 s" in told[0]


# Rank 1 comes when rank 0 has given up its first backward.
LATE_OPENING = """
import datetime, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from sirtaki.torch.ddp import accelerate
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(100, 100, bias=False))
accelerate(model, compression="none")
def backward(value):
    model.zero_grad()
    try:
        model(torch.full((1, 100), value)).sum().backward()
        return model.module.weight.grad.mean().item()
    except RuntimeError as error:
        return ["late" if "not combined after 2 s" in str(error) else "another", "rank 0" in str(error)]
if rank == 0:
    told = [backward(1.0)]
    store.set("gave_up", "yes")
    store.wait(["was_told"], datetime.timedelta(seconds=30))
else:
    store.wait(["gave_up"], datetime.timedelta(seconds=30))
    told = [backward(1.0)]
    store.set("was_told", "yes")
told.append(backward(1.0 + rank))
sys.stdout.write(f"RESULT {rank} {told}\\n")
"""


def test_a_rank_that_comes_after_the_timeout_of_the_first_backward(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LATE_OPENING)
    output = launch(2, str(program), limit=60, warm=True).stdout
    assert sorted(results(output)) == ["RESULT 0 [['late', False], 1.5]", "RESULT 1 [['late', True], 1.5]"], output


DYING = """
import os, signal, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from sirtaki.torch.ddp import accelerate
dist.init_process_group("sirtaki")
model = DistributedDataParallel(torch.nn.Linear(100, 100))
accelerate(model, compression="int8")
model(torch.ones(1, 100)).sum().backward()
loss = model(torch.ones(1, 100)).sum()
if dist.get_rank() == 1:
    loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
try:
    loss.backward()
except RuntimeError as error:
    sys.stdout.write(f"RESULT {dist.get_rank()} {' '.join(str(error).split())}\\n")
    sys.stdout.flush()
    sys.exit(3)
"""


def test_survivors_of_a_killed_rank_name_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(DYING)
    told = results(launch(3, str(program), limit=60, warm=True).stdout)
    assert [line.split()[1] for line in told] == ["0", "2"], told
    assert all("rank 1" in line for line in told), told
