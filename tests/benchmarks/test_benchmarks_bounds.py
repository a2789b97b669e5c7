"""The bound of a step against an exhaustive search, and the layer tables against the published sizes."""

from __future__ import annotations

import random
from functools import cache
from itertools import accumulate, pairwise

import pytest

from benchmarks.common import bounds
from benchmarks.training import layer_tables


def _search(forward: list[int], backward: list[int], wire: list[int]) -> int:
    """Returns the shortest step, in units of time, over every assignment of link units to layers that are ready."""
    layers = len(forward)
    ready = list(accumulate(reversed(backward)))[::-1]
    tails = list(accumulate(reversed(forward)))[::-1]

    @cache
    def best(now: int, left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        choices = [i for i in range(layers) if left[i] and ready[i] <= now]
        if not choices:
            return best(now + 1, left)
        return min(
            max(
                now + 1 + tails[i] if left[i] == 1 else 0,
                best(now + 1, (*left[:i], left[i] - 1, *left[i + 1 :])),
            )
            for i in choices
        )

    return max(sum(forward) + sum(backward), best(0, tuple(wire)))


def test_no_schedule_beats_the_bound_and_one_reaches_it() -> None:
    generator = random.Random(11)
    for _ in range(150):
        layers = generator.randint(1, 4)
        forward = [generator.randint(0, 3) for _ in range(layers)]
        backward = [generator.randint(0, 3) for _ in range(layers)]
        wire = [generator.randint(0, 4) for _ in range(layers)]
        found = bounds.step_bound(forward, backward, wire, "forward")
        assert found == _search(forward, backward, wire), (forward, backward, wire)


def test_the_link_carries_every_layer_whole_after_it_is_ready_and_one_at_a_time() -> None:
    generator = random.Random(12)
    transfers = [bounds.Transfer(generator.random(), generator.random() / 4, generator.random()) for _ in range(30)]
    spans = bounds.list_schedule(transfers)
    assert all(one.end <= other.begin for one, other in pairwise(spans))
    for layer, transfer in enumerate(transfers):
        mine = [span for span in spans if span.layer == layer]
        assert mine[0].begin >= transfer.ready
        assert sum(span.end - span.begin for span in mine) == pytest.approx(transfer.seconds)


def test_waiting_for_all_gradients_hides_no_more_than_backward() -> None:
    forward, backward, wire = [1.0] * 4, [2.0] * 4, [3.0] * 4
    assert bounds.step_bound(forward, backward, wire, "backward") == 2 + 12 + 4
    assert bounds.step_bound(forward, backward, wire, "forward") == 2 + 12 + 1


def test_a_first_layer_that_is_all_of_the_model_hides_nothing() -> None:
    assert bounds.step_bound([1, 1], [2, 2], [9, 0], "forward") == 4 + 9 + 2


@pytest.mark.parametrize(
    ("name", "parameters", "tensors", "giga"),
    [("vgg19", 143_667_240, 38, 39.3), ("resnet50", 25_557_032, 161, 8.2), ("bert_base", 109_482_240, 199, 22.4)],
)
def test_layer_tables_have_the_published_sizes(name: str, parameters: int, tensors: int, giga: float) -> None:
    model = layer_tables.MODELS[name]()
    assert model.parameters == parameters
    assert sum(len(layer.tensors) for layer in model.layers) == tensors
    assert model.flops / 1e9 == pytest.approx(giga, rel=0.01)
    assert sum(model.forward_shares()) == pytest.approx(1.0)


def test_scaling_divides_every_tensor() -> None:
    model = layer_tables.vgg19()
    scaled = model.scaled(64)
    assert sum(map(sum, scaled)) == pytest.approx(model.parameters / 64, rel=1e-3)
    assert scaled[0] == [27, 1]
    assert min(min(layer) for layer in scaled) == 1
