"""Comparison of states among ranks that are threads: what is found, healed, reported and left alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bit_flips import flip  # noqa: E402
from thread_ranks import LIMIT_SECONDS, Exchange  # noqa: E402

import sirtaki  # noqa: E402
import sirtaki.torch as hvd  # noqa: E402
from sirtaki.errors import MismatchError, RanksChangedError  # noqa: E402
from sirtaki.torch.elastic._compared import compared_of, row_major_bytes  # noqa: E402
from sirtaki.torch.elastic._comparison import comparison_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("loop")


class Rank:
    """A model with its optimizer, and their comparison."""

    def __init__(self, exchange: Exchange, make: Callable[[Any], Any] | None = None) -> None:
        torch.manual_seed(7)
        layers = torch.nn.Linear(40, 500), torch.nn.BatchNorm1d(500), torch.nn.Linear(500, 3)
        self.model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.Adam(self.model.parameters(), 0.01) if make is None else make(self.model)
        self.optimizer: Any = optimizer
        if make is None:
            self.optimizer = hvd.DistributedOptimizer(optimizer, self.model.named_parameters())
        self.model(torch.randn(8, 40)).square().sum().backward()
        self.optimizer.step()
        self.commits = 0
        self.seconds = 0.0
        self.comparison = comparison_of(self.values, exchange, self.clock)

    def values(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def clock(self) -> float:
        self.seconds += 0.001
        return self.seconds

    def tensors(self) -> list[Any]:
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*self.model.parameters(), *moments]

    def commit(self) -> bool:
        self.commits += 1
        self.seconds += 0.5  # 500 times as long as a digest, so pieces keep their length
        self.comparison.offer()
        return self.comparison.meet(self.commits)[1]


class Ranks:
    """Ranks of a job, each in a thread when they commit."""

    def __init__(self, count: int, how: str = "heal", make: Callable[[Any], Any] | None = None) -> None:
        self.exchange = Exchange(count)
        self.ranks = [Rank(self.exchange, make) for _ in range(count)]
        for rank in self.ranks:
            rank.comparison.begin(how)

    def __getitem__(self, number: int) -> Rank:
        return self.ranks[number]

    def all(self, call: Callable[[Rank], Any]) -> list[Any]:
        def one(number: int) -> Any:
            self.exchange.own.rank = number
            return call(self.ranks[number])

        with ThreadPoolExecutor(len(self.ranks)) as pool:
            calls = [pool.submit(one, number) for number in range(len(self.ranks))]
            results = [call.exception(LIMIT_SECONDS) or call.result() for call in calls]
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def commit_until_healed(self, limit: int = 60) -> int:
        """Commits until some rank has got values, at most `limit` times. Returns the number of commits, or -1."""
        for commits in range(limit):
            if any(self.all(Rank.commit)):
                return commits + 1
        return -1

    def are_equal(self) -> bool:
        first = [row_major_bytes(t.detach()) for t in self[0].tensors()]
        others = [[row_major_bytes(t.detach()) for t in rank.tensors()] for rank in self.ranks[1:]]
        return all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_a_flipped_bit_is_healed_within_a_pass_wherever_it_is(caplog: pytest.LogCaptureFixture) -> None:
    ranks = Ranks(3)
    count = len(ranks[0].tensors())
    assert count == 6 * 4
    for number in range(count):
        victim = number % 3
        flip(ranks[victim].tensors()[number])
        before = [t.detach().clone() for t in ranks[(victim + 1) % 3].tensors()]
        assert not ranks.are_equal()
        caplog.clear()
        assert 0 < ranks.commit_until_healed() <= 60
        assert ranks.are_equal()
        assert all(torch.equal(a, b) for a, b in zip(before, ranks[victim].tensors(), strict=True))
        (record,) = caplog.records
        assert f"rank {victim} differs from ranks " in record.message
        assert "likely cause: faulty memory" in record.message
    assert ranks.commit_until_healed() == -1
    assert len(caplog.records) == 1


def test_the_text_names_the_tensor_as_the_program_does(caplog: pytest.LogCaptureFixture) -> None:
    ranks = Ranks(4)
    flip(ranks[2].model[2].bias)
    flip(ranks[2].optimizer.state[ranks[2].model[0].weight]["exp_avg_sq"])
    assert ranks.commit_until_healed() > 0
    assert caplog.messages == [
        "rank 2 differs from ranks 0-1, 3 in model.2.bias, optimizer: exp_avg_sq of model.0.weight: the values of rank "
        "0 replace the others; likely cause: faulty memory, or code or a random generator that is not the same on all "
        "ranks"
    ]


def test_ranks_that_are_wrong_in_different_tensors_are_healed_by_the_majority_of_each() -> None:
    ranks = Ranks(3)
    kept = [t.detach().clone() for t in ranks[1].tensors()]
    flip(ranks[0].model[0].weight)
    flip(ranks[2].model[2].weight)
    assert ranks.commit_until_healed() > 0
    assert ranks.are_equal()
    assert all(torch.equal(a, b) for a, b in zip(kept, ranks[0].tensors(), strict=True))


@pytest.mark.parametrize(("count", "flips"), [(2, {1: 3}), (4, {0: 3, 1: 3}), (3, {0: 1, 1: 2})])
def test_without_a_majority_all_ranks_go_on_or_end_in_order(
    count: int, flips: dict[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(how: str) -> Ranks:
        ranks = Ranks(count, how)
        for rank, bit in flips.items():
            flip(ranks[rank].optimizer.state[ranks[rank].model[0].bias]["exp_avg"], bit)
        return ranks

    ranks = wrong("heal")
    assert ranks.commit_until_healed(120) == -1
    (record,) = caplog.records
    assert "differ in optimizer: exp_avg of model.0.bias, and train on, because there is no majority" in record.message
    assert not ranks.are_equal()
    assert "broadcast" not in ranks.exchange.calls

    ranks = wrong("stop")
    with pytest.raises(MismatchError, match="no majority tells which are right") as error:
        ranks.commit_until_healed()
    sides = {2: "rank 0 and rank 1", 4: "ranks 0-1 and ranks 2-3", 3: "rank 0 and rank 1 and rank 2"}[count]
    text = f"optimizer: exp_avg of model.0.bias has different values on {sides}, and"
    assert str(error.value).startswith(text)
    assert "--elastic-divergence report" in str(error.value)
    assert error.value.tensor == "optimizer: exp_avg of model.0.bias"
    assert ranks.exchange.ended == set(range(count))
    assert "broadcast" not in ranks.exchange.calls


def test_a_parameter_that_a_rank_lacks_is_reported_or_ends_the_job(caplog: pytest.LogCaptureFixture) -> None:
    ranks = Ranks(3)
    ranks[1].model.append(torch.nn.Linear(1, 1))
    assert ranks.commit_until_healed() == -1
    assert "rank 1 differs from ranks 0, 2 in model.3.weight, model.3.bias, and train on, because" in caplog.text
    ranks = Ranks(3, "stop")
    ranks[1].model.append(torch.nn.Linear(1, 1))
    with pytest.raises(MismatchError, match=r"^model.3.weight has different values on ranks 0, 2 and rank 1 \(and 1"):
        ranks.commit_until_healed()


def test_a_state_comes_from_a_rank_that_is_right_in_all_of_it() -> None:
    ranks = Ranks(4)
    weights = [ranks[rank].model[0].weight for rank in range(4)]
    right = ranks[1].optimizer.state[weights[1]]["exp_avg"].clone()
    del ranks[3].optimizer.state[weights[3]]["exp_avg_sq"]
    flip(ranks[0].optimizer.state[weights[0]]["exp_avg"])
    assert ranks.commit_until_healed() > 0
    assert all(torch.equal(ranks[rank].optimizer.state[weights[rank]]["exp_avg"], right) for rank in range(4))
    assert ranks.are_equal()


def test_stop_ends_the_job_where_a_majority_could_heal() -> None:
    ranks = Ranks(3, "stop")
    flip(ranks[1].model[0].weight)
    with pytest.raises(MismatchError, match=r"model.0.weight has different values on ranks 0, 2 and rank 1; likely"):
        ranks.commit_until_healed()
    assert ranks.exchange.ended == {0, 1, 2}


def test_report_warns_of_each_tensor_once_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ranks = Ranks(2, "report")
    flip(ranks[1].model[0].weight)
    assert ranks.commit_until_healed(120) == -1
    assert [m.partition(",")[0] for m in caplog.messages] == ["rank 0 and rank 1 differ in model.0.weight"]
    assert ranks.exchange.calls.count("objects") <= ranks.exchange.calls.count("rows") / 8, "once in a pass"
    flip(ranks[0].model[2].weight)
    ranks.commit_until_healed(60)
    assert [m.partition(",")[0] for m in caplog.messages[1:]] == ["rank 0 and rank 1 differ in model.2.weight"]
    assert not ranks.are_equal()


def test_metrics_count_tensors_that_differ() -> None:
    assert sirtaki.metrics()["diverged_tensors"] == 0
    ranks = Ranks(3)
    flip(ranks[2].model[0].weight)
    flip(ranks[2].model[0].bias)
    assert ranks.commit_until_healed() > 0
    assert sirtaki.metrics()["diverged_tensors"] == 2 * 3, "each of the threads counts"
    ranks = Ranks(3, "report")
    flip(ranks[2].model[0].weight)
    ranks.commit_until_healed(40)
    assert sirtaki.metrics()["diverged_tensors"] == 3 * 3


def test_a_rank_that_has_left_out_the_first_step_gets_the_state_of_the_optimizer() -> None:
    ranks = Ranks(3)
    ranks[1].optimizer.state.clear()
    flip(ranks[1].model[0].weight)
    assert ranks.commit_until_healed() > 0
    assert ranks.are_equal()
    assert "share" in ranks.exchange.calls
    ranks[2].optimizer.state[ranks[2].model[0].weight]["more"] = torch.ones(3)
    assert ranks.commit_until_healed() > 0
    assert ranks.are_equal()
    assert "more" not in ranks[2].optimizer.state[ranks[2].model[0].weight]


def test_a_new_tensor_in_the_middle_of_a_pass_belongs_to_the_next_one() -> None:
    ranks = Ranks(3)
    ranks.all(Rank.commit)
    for rank in ranks.ranks:
        rank.optimizer.state[rank.model[0].weight]["more"] = torch.ones(3)
        rank.optimizer.state[rank.model[2].weight].pop("exp_avg")
    flip(ranks[0].optimizer.state[ranks[0].model[0].weight]["more"])
    assert ranks.commit_until_healed() > 0
    assert ranks.are_equal()


def test_a_commit_exchanges_one_row_and_nothing_else() -> None:
    ranks = Ranks(3)
    for commits in range(1, 41):
        assert [change for change, _ in ranks.all(lambda rank: (rank.comparison.offer(), rank.comparison.meet(5))[1])]
        assert ranks.exchange.calls == ["rows"] * commits


def test_rank_0_chooses_the_length_of_pieces_by_their_time() -> None:
    ranks = Ranks(2)
    ranks[1].clock = lambda: 0.0  # type: ignore[method-assign]
    lengths = []
    for seconds in (10.0, 10.0, 10.0, -0.5):
        ranks[0].seconds += seconds
        ranks.all(Rank.commit)
        lengths.append([rank.comparison._length for rank in ranks.ranks])
    first = lengths[0][0]
    assert lengths == [[first] * 2, [2 * first] * 2, [4 * first] * 2, [16 << 10] * 2]
    assert first == 64 << 10


def test_ranks_of_different_places_begin_again_together() -> None:
    ranks = Ranks(3)
    ranks.all(Rank.commit)
    ranks[1].comparison._position += 1000
    assert ranks.all(Rank.commit) == [False] * 3
    assert [rank.comparison._position for rank in ranks.ranks] == [0] * 3
    flip(ranks[1].model[2].weight)
    assert ranks.commit_until_healed() > 0


def test_a_loss_during_healing_is_a_loss() -> None:
    ranks = Ranks(3)
    flip(ranks[1].model[0].weight)
    flip(ranks[1].model[2].weight)
    ranks.exchange.lost_in_broadcast = 2
    with pytest.raises(RanksChangedError):
        ranks.commit_until_healed()
    ranks.exchange.lost_in_broadcast = -1
    for rank in ranks.ranks:
        rank.comparison.begin("heal")  # the next sync()
    assert ranks.commit_until_healed() > 0
    assert ranks.are_equal()


def local(model: Any) -> Any:
    return hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters(), local_updates=4)


def of_a_set(model: Any) -> Any:
    return hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), process_set=hvd.ProcessSet([0]))


def plain(model: Any) -> Any:
    return torch.optim.Adam(model.parameters())


@pytest.mark.parametrize("make", [local, plain, of_a_set])
def test_what_differs_by_right_is_not_compared(make: Callable[[Any], Any]) -> None:
    ranks = Ranks(2, make=make)
    assert compared_of(ranks[0].values()) == []
    for rank in ranks.ranks:
        rank.comparison.offer()
        assert not rank.comparison.offers
        assert not rank.comparison.is_on, "exchanges stay those of the state"


def test_warnings_come_from_rank_0_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    ranks = Ranks(3)
    flip(ranks[0].model[0].weight)
    assert ranks.commit_until_healed() > 0
    assert len(caplog.records) == 1
