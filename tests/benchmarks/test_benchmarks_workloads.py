"""The clocks of the benchmark workers, and steps that send nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest
from benchmarks_fakes import Fake

from benchmarks import importance, methods
from benchmarks.common.systems import Place
from benchmarks.common.workloads import Bench
from benchmarks.pareto.entrants import Entry, recipe_of, trainings
from benchmarks.training.trainings import time_alone

pytestmark = pytest.mark.usefixtures("warm_ranks")

pytest.importorskip("torch")

SECONDS = 0.02


class Computes(Fake):
    """A system that keeps a processor busy for tensors of more than one element."""

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


@pytest.mark.parametrize(
    "recipe",
    [
        methods.recipe_of(methods.METHODS["hylo"], 1, 20),
        importance.recipe_of("10%", 1, 20),
        recipe_of(trainings(["cnn_sgd"], [300])[0], Entry("ddp", 1)),
    ],
    ids=["methods", "importance", "frontier"],
)
def test_steps_of_any_benchmark_can_be_timed_without_sending(recipe: dict[str, Any]) -> None:
    (seconds,) = time_alone(1, {**recipe, "net": "cnn", "batch": 2}, blocks=1, steps=1)
    assert seconds > 0
