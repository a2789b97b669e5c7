"""Batch size and learning rate of elastic.Training, with numbers of ranks that only pretend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from torch.optim import lr_scheduler  # noqa: E402

import sirtaki.torch as hvd  # noqa: E402
from sirtaki.elastic._layout import difference  # noqa: E402
from sirtaki.errors import InvalidArgumentError, RanksChangedError  # noqa: E402
from sirtaki.torch.elastic import TorchState, Training  # noqa: E402

LOST = RanksChangedError("rank 1 was lost")


@contextmanager
def ranks(number: int, *, error: Exception | None = None) -> Iterator[None]:
    """Pretends a number of ranks, between which sync() transfers nothing, or fails."""
    size = mock.patch("sirtaki.torch.elastic.training.size", return_value=number)
    with size, mock.patch.object(TorchState, "sync", side_effect=error):
        yield


@contextmanager
def of_rank_1(factor: float) -> Iterator[None]:
    """Pretends to be rank 1, which gets this factor from rank 0."""
    names = "sirtaki.torch.elastic.training.rank", "sirtaki.torch.elastic.training.broadcast_object"
    with mock.patch(names[0], return_value=1), mock.patch(names[1], return_value=(factor, "")):
        yield


def training_of(number: int, lr: Any = "linear", **values: Any) -> Training:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    with ranks(number):
        return Training(model, optimizer, lr=lr, **values)


def rate_of(state: Training) -> float:
    return float(state.optimizer.param_groups[0]["lr"])


def change(state: Training, number: int) -> None:
    with ranks(number):
        state.sync()


@pytest.mark.parametrize(
    ("lr", "expected"),
    [
        ("keep", [0.3, 0.3, 0.3]),
        ("linear", [0.2, 0.4, 0.3]),
        ("sqrt", [0.3 * math.sqrt(2 / 3), 0.3 * math.sqrt(4 / 3), 0.3]),
        (lambda old, new: 10.0 if new < old else 0.5, [3.0, 1.5, 15.0]),
    ],
)
def test_the_learning_rate_follows_the_number_of_ranks(lr: Any, expected: list[float], session: None) -> None:
    state = training_of(3, lr)
    for number, rate in zip((2, 4, 3), expected, strict=True):
        change(state, number)
        assert rate_of(state) == pytest.approx(rate)
        change(state, number)
        assert rate_of(state) == pytest.approx(rate), "only a change counts"


def test_a_commit_of_another_number_of_ranks_is_adapted_too(session: None) -> None:
    state = training_of(4)
    state.commit()
    change(state, 2)
    assert rate_of(state) == pytest.approx(0.15)
    state.restore()
    assert rate_of(state) == pytest.approx(0.15), "sync() saves"
    change(state, 1)
    with ranks(2, error=LOST), pytest.raises(RanksChangedError):
        state.sync()
    state.restore()
    assert (rate_of(state), state.lr_ranks) == (pytest.approx(0.075), 1), "a sync() that fails changes nothing"


def test_a_snapshot_of_another_number_of_ranks_is_adapted_too(session: None) -> None:
    saved = training_of(4)
    resumed = training_of(2)
    resumed._take_over(saved._hand_over())
    change(resumed, 2)
    assert rate_of(resumed) == pytest.approx(0.15)


def test_a_change_is_told_by_rank_0_alone(session: None, capsys: pytest.CaptureFixture[str]) -> None:
    state = training_of(4)
    change(state, 3)
    with of_rank_1(factor=4 / 3):
        change(state, 4)
    assert rate_of(state) == pytest.approx(0.3)
    told = "sirtaki: the learning rate is multiplied by 0.75 for 3 ranks in place of 4\n"
    assert capsys.readouterr().err == told


def test_the_factor_of_rank_0_counts_everywhere(session: None) -> None:
    factors = mock.Mock(return_value=9.0)
    state = training_of(4, factors)
    with of_rank_1(factor=0.5):
        change(state, 2)
    factors.assert_not_called()
    assert rate_of(state) == pytest.approx(0.15)


def test_a_snapshot_of_another_kind_of_state_has_the_rate_of_the_present_ranks(session: None) -> None:
    model = torch.nn.Linear(1, 1)
    saved = TorchState(model, torch.optim.SGD(model.parameters(), lr=0.2), epoch=3)._hand_over()
    resumed = training_of(2, epoch=0)
    resumed._take_over(saved)
    assert (resumed.epoch, resumed.lr_ranks) == (3, 2)
    change(resumed, 4)
    assert rate_of(resumed) == pytest.approx(0.4)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "function": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "product": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 8, eta_min=0.01),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, eta_min=0.01),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=10),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5, step_size_up=3),
    "warm-up": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=5),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(o, 6, 0.01)], [4]
    ),
    "chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, min_lr=0.05),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("is_tensor", [False, True])
def test_schedules_go_on_from_the_changed_rate(kind: str, is_tensor: bool, session: None) -> None:
    def rates(changed_at: int) -> list[float]:
        param = torch.nn.Parameter(torch.zeros(1))
        rate = torch.tensor(0.3) if is_tensor else 0.3
        optimizer = torch.optim.SGD([param], rate, momentum=0.9, foreach=is_tensor)
        scheduler = SCHEDULERS[kind](optimizer)
        with ranks(4):
            state = Training(optimizer=optimizer, lr="linear", scheduler=scheduler)
        found = []
        for step in range(9):
            if step == changed_at:
                change(state, 2)
                state.restore()
            found.append(float(optimizer.param_groups[0]["lr"]))
            param.grad = torch.zeros(1)
            optimizer.step()
            scheduler.step(*([1.0] if kind == "plateau" else []))
            assert [float(one) for one in scheduler.get_last_lr()] == [float(optimizer.param_groups[0]["lr"])]
        return found

    plain = rates(changed_at=99)
    assert len(set(plain)) > 1
    for step in (0, 3, 6):
        assert rates(step) == pytest.approx([rate / (2 if i >= step else 1) for i, rate in enumerate(plain)])


def test_the_batch_of_a_rank_or_that_of_all_ranks_stays(session: None) -> None:
    each, together = training_of(4, batch_size=16), training_of(4, "keep", batch="global", batch_size=64)
    for number, share in ((4, 16), (3, 21), (5, 13), (200, 1)):
        with ranks(number):
            assert each.batch_size == 16
            assert together.batch_size == share
    with pytest.raises(InvalidArgumentError, match="made without batch_size"):
        _ = training_of(4).batch_size


def test_a_batch_that_is_far_from_the_wanted_one_is_told(session: None, capsys: pytest.CaptureFixture[str]) -> None:
    state = training_of(4, "keep", batch="global", batch_size=20)
    for number in (4, 3, 8, 8, 40, 5):
        change(state, number)
    with of_rank_1(factor=1.0):
        change(state, 8)
    change(training_of(4, "keep", batch_size=20), 8)
    assert capsys.readouterr().err.splitlines() == [
        "sirtaki: the batch of 8 ranks has 16 samples, 2 of each rank, in place of 20 (batch_size)",
        "sirtaki: the batch of 40 ranks has 40 samples, 1 of each rank, in place of 20 (batch_size)",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch": "global", "batch_size": 8}, "argument 'batch': 'global' here, 'rank' on rank 0"),
        ({"batch_size": 4}, "argument 'batch_size': 4 here, 8 on rank 0"),
        ({"batch_size": 8, "lr": lambda old, new: 1.0}, "argument 'lr': a function here, 'keep' on rank 0"),
        ({"batch_size": 8}, ""),
    ],
)
def test_arguments_are_the_same_on_all_ranks(arguments: dict[str, Any], text: str, session: None) -> None:
    own, theirs = (training_of(1, **{"lr": "keep", **given})._layout() for given in (arguments, {"batch_size": 8}))
    assert difference(own, theirs).partition(", and ")[0] == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch": 0}, 'batch is "rank" or "global", not 0; values have other names'),
        ({"lr": 0.1}, 'lr is "keep", "linear", "sqrt" or a function, not 0.1'),
        ({"batch": "global"}, 'batch="global" needs batch_size'),
        ({"batch": "global", "batch_size": 8, "lr": "linear"}, 'with batch="global", use lr="keep"'),
        ({"batch_size": 0}, "batch_size must be positive, not 0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], text: str, session: None) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        Training(**arguments)


@pytest.mark.parametrize(
    ("returned", "text"), [(0.0, "must return a positive factor, not 0.0"), ("?", "has failed on rank 0: ValueError: ")]
)
def test_a_function_must_return_a_factor(returned: Any, text: str, session: None) -> None:
    state = training_of(2, lambda old, new: returned)
    with pytest.raises(InvalidArgumentError, match=rf"the function lr\(2, 1\) {text}"):
        change(state, 1)


def test_rates_of_all_optimizers_change_once(session: None) -> None:
    model = torch.nn.Linear(1, 1)
    first = hvd.DistributedOptimizer(torch.optim.SGD([model.weight], 0.2), [("weight", model.weight)])
    second = torch.optim.SGD([{"params": [model.bias], "lr": 0.1}], 0.4)
    with ranks(2):
        state = Training(model, first, again=first, second=second, lr="linear")
    change(state, 4)
    assert [group["lr"] for one in (first, second) for group in one.param_groups] == pytest.approx([0.4, 0.2])


def test_one_tensor_may_be_the_rate_of_several_groups(session: None) -> None:
    params = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
    optimizer = torch.optim.Adam([{"params": params[:1]}, {"params": params[1:2]}], torch.tensor(0.2))
    rate = optimizer.param_groups[0]["lr"]
    assert optimizer.param_groups[1]["lr"] is rate
    other = torch.optim.Adam(params[2:], rate)
    with ranks(2):
        state = Training(optimizer=optimizer, other=other, lr="linear")
    change(state, 4)
    assert optimizer.param_groups[1]["lr"] is rate, "graphs read it"
    assert float(rate) == pytest.approx(0.4)


def test_an_optimizer_may_choose_its_rate_itself(session: None) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    optimizer.param_groups[0]["lr"] = None
    with ranks(2):
        state = Training(optimizer=optimizer, lr="linear")
    change(state, 4)
    assert (optimizer.param_groups[0]["lr"], state.lr_ranks) == (None, 4)


def test_a_scheduler_changes_once_though_it_is_in_the_state_twice(session: None) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.2)
    inner = lr_scheduler.CosineAnnealingLR(optimizer, 6, 0.01)
    sequence = lr_scheduler.SequentialLR(optimizer, [lr_scheduler.LinearLR(optimizer, 0.1), inner], [4])
    with ranks(2):
        state = Training(optimizer=optimizer, lr="linear", inner=inner, sequence=sequence, again=sequence)
    change(state, 4)
    assert (inner.base_lrs, inner.eta_min) == ([pytest.approx(0.4)], pytest.approx(0.02))
