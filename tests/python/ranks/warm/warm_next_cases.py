"""A case that works, for test_warm.py."""

from __future__ import annotations

import torch

import sirtaki.torch as hvd


def case_sum() -> None:
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]
