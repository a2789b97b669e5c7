"""sirtaki.torch.ddp: the engine under DistributedDataParallel, by one line or by the options of the launcher."""

from __future__ import annotations

import pytest
from rank_support import case_names, check_case

pytest.importorskip("torch")

HOOK = "torch_distributed.ddp_hook_cases"
MISUSE = "torch_distributed.ddp_misuse_cases"
NONFINITE = "torch_distributed.ddp_nonfinite_cases"


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
