"""Metrics of one process and of two ranks: the dict, its table and its page agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_support import launch

torch = pytest.importorskip("torch")

import sirtaki  # noqa: E402
import sirtaki.torch as hvd  # noqa: E402
from sirtaki._end_report import follow  # noqa: E402
from sirtaki._telemetry.metrics import COUNTER, METRICS, TEXT, from_facts, pattern_of  # noqa: E402
from sirtaki._telemetry.totals import Totals  # noqa: E402

PAGE = Path(__file__).resolve().parents[3] / "docs/metrics.md"

#: Two optimizers on two ranks: one with a compressed gradient stream, one with local updates.
TRAINED = """
import json, torch, sirtaki
import sirtaki.torch as hvd

hvd.init()
def optimizer(name, **options):
    model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Linear(8, 1))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    named = [(f"{name}.{key}", value) for key, value in model.named_parameters()]
    return model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), named, **options)

pairs = [optimizer("a", compression="int8:min=100"), optimizer("b", local_updates=2)]
for _ in range(9):
    for model, made in pairs:
        made.zero_grad()
        model(torch.ones(1, 64)).sum().backward()
        made.step()
pairs[1][1].drain()
found = sirtaki.metrics("s/")
if hvd.rank() == 0:
    print("FOUND", json.dumps(found), flush=True)
print("STEPS", found["s/rank"], found["s/steps"], flush=True)
"""


@pytest.fixture
def session() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def rows() -> list[tuple[str, ...]]:
    """Returns name, kind and meaning of the rows of the table in docs/metrics.md."""
    cells = (tuple(cell.strip(" `") for cell in line.split(" | ")) for line in PAGE.read_text().splitlines())
    return [(name.lstrip("| `"), kind, text.rstrip(" |")) for name, kind, text in (c for c in cells if len(c) == 3)]


def described(name: str) -> tuple[str, str]:
    """Returns name and kind of the row of METRICS for a metric."""
    for metric in METRICS:
        if pattern_of(metric.name).fullmatch(name):
            return metric.name, metric.kind
    raise AssertionError(f"{name} is not in METRICS")


def test_the_page_has_every_metric() -> None:
    assert rows()[1:] == [(metric.name, metric.kind, metric.help) for metric in METRICS]


def test_a_training_on_two_ranks_has_every_metric_that_is_in_the_table() -> None:
    done = launch(2, "-c", TRAINED, warm=True)
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout.partition("FOUND ")[2].splitlines()[0])
    assert all(name.startswith("s/") for name in found)
    kinds = {name: described(name[2:]) for name in found}
    for name, value in found.items():
        assert isinstance(value, str) == (kinds[name][1] == TEXT), (name, value)
        if kinds[name][1] == COUNTER:
            assert value >= 0, name
    # A loopback of a few steps may end before the first measurement.
    unsure = {"link_bytes_per_second", "link_latency_seconds", "predicted_step_seconds"}
    assert {row for row, _ in kinds.values()} | unsure == {metric.name for metric in METRICS}
    assert [row for row in (metric.name for metric in METRICS) if row not in unsure] == list(
        dict.fromkeys(row for row, _ in kinds.values() if row not in unsure)
    )
    assert (found["s/size"], found["s/hosts"], found["s/steps"]) == (2, 1, 18)
    assert found["s/codec.int8.tensors"] >= 1
    assert found["s/wire_bytes"] < found["s/gradient_bytes"]
    assert found["s/local.interval"] == 2
    assert found["s/local.rounds"] >= 1
    assert 0 <= found["s/exposed_share"] <= 1
    assert "STEPS 0 18" in done.stdout
    assert "STEPS 1 18" in done.stdout


def test_metrics_need_a_session() -> None:
    with pytest.raises(ValueError, match=r"init\(\)"):
        sirtaki.metrics()


@pytest.mark.usefixtures("session")
def test_metrics_of_one_rank_have_no_links() -> None:
    found = sirtaki.metrics()
    assert found["size"] == 1
    assert found["steps"] == found["sent_bytes"] == 0
    assert "codec" not in found
    assert "link_latency_seconds" not in found
    assert "local.interval" not in found
    assert "step_seconds" not in found


def test_streams_count_where_no_optimizer_does() -> None:
    stats = {"rank": 1, "size": 2, "ranks_by_host": [1, 1], "data_path": "tcp", "peers": [], "tensors": {"keras": []}}
    stats |= {"streams.steps": 4, "streams.step_ns": {"count": 4, "mean": 5e6, "sum": 20_000_000}}
    stats |= {"streams.exposed_ns": {"sum": 2_000_000}, "streams.keras.link_latency_ns": {"value": 3000}}
    found = from_facts(stats, Totals(), {})
    assert (found["steps"], found["step_seconds"], found["exposed_seconds"]) == (4, 0.005, 0.002)
    assert found["link_latency_seconds"] == 3e-6


class Stepped:
    """The part of an optimizer that metrics read."""

    def __init__(self) -> None:
        self.exposed_seconds = 0.0

    @staticmethod
    def local_stats() -> dict[str, object]:
        return {}

    @staticmethod
    def compression_report() -> list[dict[str, object]]:
        return []


@pytest.mark.usefixtures("session")
def test_counters_never_fall_while_optimizers_come_and_go() -> None:
    counters = ("steps", "training_seconds", "exposed_seconds")
    before = dict.fromkeys(counters, 0.0)
    alive = []

    def check(steps: int, exposed_seconds: float) -> None:
        found = {name: float(value) for name, value in sirtaki.metrics().items() if name in counters}
        assert (found["steps"], found["exposed_seconds"]) == (steps, exposed_seconds)
        assert all(found[name] >= before[name] for name in counters), (before, found)
        before.update(found)

    for number in range(1, 13):
        optimizer = Stepped()
        training = follow(optimizer)
        optimizer.exposed_seconds = 1.0
        training.stepped()
        check(number, 1.5 * number - 0.5)
        optimizer.exposed_seconds += 0.5  # as drain() after the last step
        check(number, 1.5 * number)
        if number % 3 == 0:
            training.close(optimizer)
        elif number % 3 == 1:
            alive.append((training, optimizer))
        del training, optimizer
        check(number, 1.5 * number)
    alive[0][0].stepped()
    check(13, 18.0)
    # The report has the last eight optimizers only, the first one is not among them.
    alive[0][1].exposed_seconds += 0.5
    alive[0][0].close(alive[0][1])
    alive.clear()
    check(13, 18.5)
