"""sirtaki.torch.ddp: the engine under DistributedDataParallel, by one line or by the options of the launcher."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_support import case_names, check_case
from test_torch_distributed import results, with_torchrun

pytest.importorskip("torch")

HOOK = "torch_distributed.ddp_hook_cases"
MISUSE = "torch_distributed.ddp_misuse_cases"
NONFINITE = "torch_distributed.ddp_nonfinite_cases"
OPTIONS = "torch_distributed.ddp_option_cases"
LOCAL = "torch_distributed.ddp_local_cases"
LOCAL_OPTIONS = "torch_distributed.ddp_local_option_cases"


@pytest.mark.parametrize("case", case_names(HOOK))
@pytest.mark.parametrize("np", [2, 3, 4])
def test_results(np: int, case: str) -> None:
    check_case(HOOK, np, case)


@pytest.mark.parametrize("case", case_names(MISUSE))
@pytest.mark.parametrize("np", [2, 3])
def test_misuse(np: int, case: str) -> None:
    check_case(MISUSE, np, case)


@pytest.mark.parametrize("case", case_names(NONFINITE))
@pytest.mark.parametrize("how", ["error", "skip"])
def test_nonfinite(how: str, case: str) -> None:
    check_case(NONFINITE, 2, case, ("--compression-nonfinite", how))


@pytest.mark.parametrize("case", case_names(OPTIONS))
@pytest.mark.parametrize("np", [2, 3])
def test_options_of_the_launcher(np: int, case: str) -> None:
    check_case(OPTIONS, np, case, ("--compression", "twobit:wire=gather"))


@pytest.mark.parametrize("case", case_names(LOCAL))
@pytest.mark.parametrize("np", [2, 3])
def test_local_updates(np: int, case: str) -> None:
    check_case(LOCAL, np, case)


@pytest.mark.parametrize("case", case_names(LOCAL_OPTIONS))
def test_local_updates_by_an_option(case: str) -> None:
    check_case(LOCAL_OPTIONS, 2, case, ("--local-updates", "4"))


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
