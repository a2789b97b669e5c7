"""The benchmark of compression levels: simulated codecs against the runtime, tuning, figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import ladder
from benchmarks.common.group import Group
from benchmarks.results import Store
from benchmarks.training import simulated_codecs, simulated_ranks
from benchmarks.training.nets import make_model
from benchmarks.training.optimizers import make_optimizer
from benchmarks.training.simulated_codecs import DENSE, LEVELS
from benchmarks.training.trainings import train

RANKS, STEPS = 4, 5
RECIPE = {"net": "cnn", "batch": 4, "seed": 7, "lr": 0.05, "momentum": 0.9, "steps": 40, "optimizer": "sgd"}


@pytest.fixture(scope="module")
def runtime() -> Iterator[Group]:
    pytest.importorskip("sirtaki")
    with Group(RANKS, ["sirtaki"]) as group:
        yield group


@cache
def simulated(level: str) -> list[float]:
    training = simulated_ranks.SimulatedRanks(RANKS, RECIPE, LEVELS[level])
    return [training.step() for _ in range(STEPS)]


@pytest.mark.parametrize("level", [name for name, level in LEVELS.items() if level.option])
def test_a_simulated_level_trains_like_the_runtime(runtime: Group, level: str) -> None:
    real = train(runtime, "sirtaki", level, {**RECIPE, "how": {"compression": LEVELS[level].option}}, STEPS)
    apart = {name: max(abs(a - b) for a, b in zip(simulated(name), real, strict=True)) for name in LEVELS}
    # Rounding of sums may tip an element over a threshold; other levels are further away than that moves a loss.
    assert apart.pop(level) <= max(0.1 * min(apart.values()), 2e-6)


@pytest.mark.parametrize("level", list(LEVELS))
def test_nothing_of_a_gradient_is_lost(level: str) -> None:
    if LEVELS[level].momentum:
        pytest.skip("steps are sent, not gradients")
    exchange = LEVELS[level].open(torch.Size((64, 80)), RANKS)
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(RANKS, 64, 80, generator=generator)
    steps = 60
    received = sum(exchange.mean(gradients) for _ in range(steps)) / steps
    error = float((received - gradients.mean(0)).norm() / gradients.mean(0).norm())
    assert error < 0.8, "the mean of the received gradients approaches that of the gradients"


def test_sizes_are_those_of_payloads() -> None:
    shape, dense = torch.Size((128, 512)), simulated_codecs.allreduce_bytes(4 * 128 * 512, RANKS)
    shares = {name: level.open(shape, RANKS).sent / dense for name, level in LEVELS.items()}
    assert shares[DENSE] == 1
    assert shares["int8"] == pytest.approx((1 + 1 / 256) / 4)
    assert shares["twobit"] == pytest.approx((2 + 8 / 2048) / 32)
    assert shares["powersgd_4"] == pytest.approx(4 * (128 + 512) / (128 * 512))
    entries = (5 * 1311 + 3) // 4
    assert shares["sparse_2%"] == pytest.approx(3 * (4 + 2 * 16 + 6 * entries) / dense)


def test_the_rate_rises_and_falls() -> None:
    recipe = {"lr": 1.0, "steps": 10, "warm_up": 2}
    assert [simulated_ranks.rate_at(recipe, step) for step in (0, 1, 2, 6, 9)] == [0.5, 1.0, 1.0, 0.5, 0.125]


@pytest.mark.parametrize(("least", "found"), [(0.1, 0.1), (0.4, 0.4), (0.025, 0.025), (100.0, 1.6)])
def test_tuning_goes_where_the_loss_falls(least: float, found: float) -> None:
    assert ladder.tune(0.1, lambda lr: abs(lr - least)) == pytest.approx(found)


def test_muon_leaves_kernels_and_the_output_layer_of_the_cnn_to_adamw() -> None:
    model = make_model("cnn")
    optimizer = make_optimizer(model, "muon", 0.01, 0.9)
    assert [p is model.fc1.weight for p in optimizer.param_groups[0]["params"]] == [True]
    assert len(optimizer.param_groups[1]["params"]) == len(list(model.parameters())) - 1


def test_every_optimizer_of_the_tables_has_two_nets() -> None:
    nets: dict[str, set[str]] = {}
    for case in ladder.CASES.values():
        nets.setdefault(case.optimizer, set()).add(case.task)
    assert {name for name, tasks in nets.items() if len(tasks) < 2} == {"adam"}


def test_momentum_correction_is_for_sgd_alone() -> None:
    assert ladder.fits(ladder.CASES["cnn/sgd"], "sparse_1%_momentum")
    assert not ladder.fits(ladder.CASES["cnn/adamw"], "sparse_1%_momentum")
    with pytest.raises(ValueError, match="belongs to SGD"):
        simulated_ranks.optimizer_of("adamw", torch.nn.Linear(2, 2), 0.1, True)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float]], None]:
    def install(losses: dict[str, float]) -> None:
        by_level = {id(LEVELS[name]): loss for name, loss in losses.items()}

        def fake(ranks: int, recipe: dict[str, Any], level: Any) -> list[float]:
            del ranks
            return [by_level[id(level)] + 0.1 * recipe["seed"]] * recipe["steps"]

        monkeypatch.setattr(ladder, "train", fake)

    return install


def test_costs_are_differences_seed_by_seed(costs: Callable[[dict[str, float]], None], tmp_path: Path) -> None:
    costs({DENSE: 2.0, "int8": 2.001, "twobit": 2.05})
    store = Store("ladder", "python -m benchmarks.ladder", folder=tmp_path)
    case, levels = ladder.CASES["cnn/sgd"], ("int8", "twobit")
    found = ladder.Ladder(store, quick=False)
    ladder.measure(found, [case], levels, rates=True)
    rows = ladder.rows_of(found, case, levels, rates=True, quick=False)
    by_name = {(row.metric, row.params["level"]): row for row in rows}
    assert by_name["loss_cost", "int8"].value == pytest.approx(0.001)
    assert by_name["loss_cost", "int8"].met is True
    assert by_name["loss_cost", "twobit"].value == pytest.approx(0.05)
    assert by_name["loss_cost", "twobit"].met is False
    assert by_name["loss_cost_own_rate", "twobit"].value == pytest.approx(0.05)
    assert by_name["loss", DENSE].value == pytest.approx(2.35)
    assert by_name["sent_share", "twobit"].value < by_name["sent_share", "int8"].value < 0.3


def test_a_training_that_diverges_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_ranks.SimulatedRanks, "step", lambda self: float("nan"))
    recipe = {**RECIPE, "steps": 3}
    assert simulated_ranks.train(RANKS, recipe, LEVELS[DENSE]) == [simulated_ranks.DIVERGED] * 3
