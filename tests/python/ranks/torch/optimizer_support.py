# ruff: noqa: PT017  (no pytest on the ranks)
"""Models, batches and comparisons for cases of optimizers: every rank against one process with the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sirtaki.torch as hvd

BATCH = 6
STEPS = 5


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The batch of all ranks together."""
    generator = torch.Generator().manual_seed(100 + step)
    inputs = torch.randn(BATCH * hvd.size(), 7, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 3, (BATCH * hvd.size(),), generator=generator)


def mine(tensor: Tensor) -> Tensor:
    return tensor.view(hvd.size(), BATCH, *tensor.shape[1:])[hvd.rank()]


def loss_of(model: nn.Module, step: int, part: Callable[[Tensor], Tensor] = mine) -> Tensor:
    inputs, labels = batch(step)
    return F.cross_entropy(model(part(inputs)), part(labels))


def everything(tensor: Tensor) -> Tensor:
    return tensor


def close(model: nn.Module, reference: nn.Module, tolerance: float = 1e-12) -> None:
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=tolerance, atol=tolerance), (name, (p - q).abs().max())


def same_on_all_ranks(tensors: Iterable[Tensor]) -> None:
    flat = torch.cat([t.detach().flatten() for t in tensors])
    gathered = hvd.allgather(flat.unsqueeze(0))
    assert torch.equal(gathered, gathered[:1].expand_as(gathered))


def compare(make: Callable[[nn.Module], torch.optim.Optimizer], **options: object) -> None:
    """Trains twice: distributed with a part of the batch each, and alone with all of it."""
    model, reference = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(make(model), model.named_parameters(), **options)
    plain = make(reference)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        plain.zero_grad()
        loss_of(reference, step, everything).backward()
        plain.step()
    close(model, reference)
    same_on_all_ranks(model.parameters())


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def raises(
    call: Callable[[], object], kind: type[BaseException] | tuple[type[BaseException], ...], *words: str
) -> None:
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"'{word}' is not in: {error}"
    else:
        raise AssertionError(f"no {kind}")


class Bomb(torch.autograd.Function):
    """An identity whose backward fails."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        raise ArithmeticError("bomb")


def expect_averages(model: Branches, step: int) -> None:
    """After a step on ones with `goes_left`: a rank that did not use a branch counts with zeros."""
    users = sum((r + step) % 2 == 0 for r in range(hvd.size()))
    for layer, count in ((model.left, users), (model.right, hvd.size() - users)):
        if count == 0:
            assert layer.weight.grad is None
        else:
            assert layer.weight.grad is not None
            assert torch.allclose(layer.weight.grad, torch.full((2, 2), count / hvd.size()))
    assert model.never.weight.grad is None


def goes_left(step: int) -> bool:
    """The branch of this rank in a step: neighbours take different ones."""
    return (hvd.rank() + step) % 2 == 0


class Branches(nn.Module):
    """Two branches of which each rank may take one, and a layer nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(2, 2, bias=False)
        self.right = nn.Linear(2, 2, bias=False)
        self.never = nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        return (self.left if left else self.right)(x)


def sparse_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(8, 2)).double()
