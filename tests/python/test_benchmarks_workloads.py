"""What the workers' clocks count."""

from __future__ import annotations

import time
from typing import Any

import pytest
from benchmarks_fakes import Fake

from benchmarks.systems import Place
from benchmarks.workloads import Bench

pytest.importorskip("torch")

SECONDS = 0.02


class Computes(Fake):
    """Keeps a processor busy for large tensors."""

    def allreduce(self, tensor: Any, name: str) -> None:
        del name
        end = time.process_time() + (SECONDS if tensor.numel() > 1 else 0.0)
        while time.process_time() < end:
            pass


def test_processor_time_is_that_of_the_iterations_alone() -> None:
    bench = Bench(Place(rank=0, size=1, folder=""), {"computes": Computes()})
    (seconds,) = bench.allreduce_cpu(4 << 20, [["computes", 2]])
    assert SECONDS <= seconds < 2 * SECONDS


def test_waiting_takes_no_processor_time() -> None:
    bench = Bench(Place(rank=0, size=1, folder=""), {"waits": Fake()})
    (seconds,) = bench.allreduce_cpu(16, [["waits", 20]])
    assert seconds < Fake.seconds
