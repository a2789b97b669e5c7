"""sirtaki.torch.compile(): a backward in regions, with the results of torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ranks.torch.compile_support import regions_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import sirtaki.torch as hvd  # noqa: E402
from sirtaki import errors  # noqa: E402

WIDTH = 8


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Net(nn.Module):
    """Layers whose last has the weight of the first, one of them recomputed in backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(16)])
        self.layers[-1].weight = self.layers[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies all layers."""
        for i, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=False) if i == 5 else layer(x)
            x = x.tanh()
        return x


def grads(model: nn.Module, run: Any, rows: int = 4) -> list[torch.Tensor]:
    model.zero_grad()
    run(torch.linspace(-1, 1, rows * WIDTH).view(rows, WIDTH)).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def output(run: Any) -> torch.Tensor:
    return run(torch.ones(4, WIDTH))


def test_a_backward_has_several_regions_and_the_same_gradients() -> None:
    model = Net()
    whole = torch.compile(model, backend="aot_eager")
    assert regions_of(output(whole)) == 1
    compiled = hvd.compile(model, backend="aot_eager", fullgraph=True)
    assert isinstance(compiled, type(whole))
    assert regions_of(output(compiled)) in range(6, 10)
    for rows in (4, 4, 7, 9):  # from the third on with a dynamic size
        for one, other in zip(grads(model, compiled, rows), grads(model, model, rows), strict=True):
            torch.testing.assert_close(one, other)


def test_bucket_bytes_are_the_size_of_a_region() -> None:
    layer = 4 * (WIDTH * WIDTH + WIDTH)
    for layers, wanted in ((1, 16), (4, 4), (16, 1)):
        torch.compiler.reset()
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(16)])
        compiled = hvd.compile(model, bucket_bytes=layers * layer, backend="aot_eager")
        assert regions_of(output(compiled)) == wanted


def test_models_without_gradients_are_one_region() -> None:
    model = Net().requires_grad_(False)
    calls = []

    def backend(graph: Any, inputs: Any) -> Any:
        del inputs
        calls.append(graph)
        return graph

    assert torch.equal(output(hvd.compile(model, backend=backend)), output(model))
    assert len(calls) == 1


def test_arguments_of_torch_reach_the_backend() -> None:
    seen = []

    def backend(graph: Any, inputs: Any, **more: Any) -> Any:
        del inputs
        seen.append(more)
        return graph

    output(hvd.compile(Net(), backend=backend, mode="mine", options={"a": 1}))
    assert len(seen) > 5
    assert all(more == {"mode": "mine", "options": {"a": 1}} for more in seen)
    with pytest.raises(RuntimeError, match="Unexpected optimization option nonsense"):
        hvd.compile(Net(), options={"nonsense": 1})


def test_mistakes_are_named() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="bucket_bytes is 0"):
        hvd.compile(Net(), bucket_bytes=0)
    with pytest.raises(errors.InvalidArgumentError, match=r"takes a torch\.nn\.Module, not function"):
        hvd.compile(lambda x: x)
