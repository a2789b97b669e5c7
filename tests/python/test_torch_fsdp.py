"""sirtaki.torch.fsdp: gradients and local updates of sharded models between replicas, on a mesh of 2 x 2."""

from __future__ import annotations

import pytest
from rank_support import case_names, check_case

pytest.importorskip("torch")

RANKS = 4
GRADIENTS = "torch_distributed.fsdp_cases"
LOCAL = "torch_distributed.fsdp_local_cases"
MISUSE = "torch_distributed.fsdp_misuse_cases"


@pytest.mark.parametrize("case", case_names(GRADIENTS))
def test_gradients(case: str) -> None:
    check_case(GRADIENTS, RANKS, case)


@pytest.mark.parametrize("case", case_names(LOCAL))
def test_local_updates(case: str) -> None:
    check_case(LOCAL, RANKS, case)


@pytest.mark.parametrize("case", case_names(MISUSE))
def test_misuse(case: str) -> None:
    check_case(MISUSE, RANKS, case)
