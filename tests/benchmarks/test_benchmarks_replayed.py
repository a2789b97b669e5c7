"""Steps that replay the gradients of a net, and wait in place of computing them."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

from benchmarks import netns  # noqa: E402
from benchmarks.common import rig  # noqa: E402
from benchmarks.common.systems import AloneSystem, Place  # noqa: E402
from benchmarks.common.workloads import Bench  # noqa: E402
from benchmarks.training.nets import make_task  # noqa: E402
from benchmarks.training.replayed import Replayed  # noqa: E402

SECONDS = 0.05


def _gradients(task: Replayed) -> list[torch.Tensor]:
    task.model.zero_grad()
    task.loss((torch.empty(0), torch.empty(0))).backward()
    return [p.grad.clone() for p in task.model.parameters()]


def test_gradients_are_those_of_the_net_at_its_first_weights() -> None:
    torch.manual_seed(1)
    real = make_task("perceptron", 8, 0, 2)
    real.loss(next(iter(real.batches(3)))).backward()
    wanted = [p.grad.clone() for p in real.model.parameters()]
    task = Replayed(real, 3, SECONDS)
    first = _gradients(task)
    assert all(torch.equal(one, other) for one, other in zip(first, wanted, strict=True))
    # A program that changes weights and gradients changes nothing in a later round of the batches.
    for p in task.model.parameters():
        p.data.zero_()
        p.grad.zero_()
    others = [_gradients(task) for _ in range(8)]
    assert all(torch.equal(one, other) for one, other in zip(others[-1], first, strict=True))
    assert not torch.equal(others[0][0], first[0])


def test_a_step_takes_its_time_without_a_processor_and_shows_gradients_in_order() -> None:
    task = Replayed(make_task("perceptron", 8, 0, 2), 3, SECONDS)
    begin, busy = time.perf_counter(), time.process_time()
    arrived: dict[int, float] = {}

    def note(parameter: torch.Tensor) -> None:
        arrived[id(parameter)] = time.perf_counter()

    for p in task.model.parameters():
        p.register_post_accumulate_grad_hook(note)
    _gradients(task)
    assert time.perf_counter() - begin >= SECONDS
    assert time.process_time() - busy < SECONDS
    ready = task.ready()
    assert min(ready) == 0.0
    assert max(ready) < SECONDS
    order = sorted(task.model.parameters(), key=lambda p: arrived[id(p)])
    by_ready = dict(zip(map(id, task.model.parameters()), ready, strict=True))
    assert [by_ready[id(p)] for p in order] == sorted(ready)


def test_a_worker_tells_the_times_of_a_replayed_training() -> None:
    bench = Bench(Place(rank=0, size=1, folder=""), {"alone": AloneSystem()})
    recipe = {"net": "perceptron", "optimizer": "sgd", "batch": 8, "lr": 0.05, "momentum": 0.9, "seed": 1, "steps": 10}
    bench.learn_prepare("a", "alone", {**recipe, "replayed": SECONDS})
    assert bench.learn_run("a", 2) >= SECONDS
    assert len(bench.learn_ready("a")) == 6


@pytest.mark.parametrize(("rate", "burst"), [("20", 2 * netns.FRAME_BYTES), ("1000", 125_000)])
def test_a_burst_is_a_time_of_the_link(rate: str, burst: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[netns.LinkSpec] = []

    def refuse(nodes: int, link: netns.LinkSpec) -> netns.Net:
        made.append(link)
        raise netns.NetnsError(f"no network for {nodes} nodes")

    monkeypatch.setattr(netns, "Net", refuse)
    with pytest.raises(netns.NetnsError, match="2 nodes"), rig.network(rate, 2, burst_ms=1.0):
        pass
    assert made[0].burst_bytes == burst
