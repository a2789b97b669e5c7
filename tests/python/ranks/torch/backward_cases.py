"""Backward passes that reach parameters of several optimizers or of none, or run inside another backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sirtaki.torch as hvd
from ranks.torch.forward_support import MODES
from ranks.torch.optimizer_support import (
    batch,
    close,
    everything,
    loss_of,
    make_model,
    mine,
    raises,
    same_on_all_ranks,
    sgd,
)

TASKS = 3


def distributed(model: nn.Module, sync: str) -> Any:
    return hvd.DistributedOptimizer(sgd(model), model.named_parameters(), sync=sync)


def combined(models: list[nn.Module], order: list[int], step: int) -> Tensor:
    """Returns the summed loss of some tasks; backward computes the gradients of the last task in `order` first."""
    total = torch.zeros((), dtype=torch.float64)
    for task in order:
        total = total + loss_of(models[task], step)
    return total


def case_backward_meets_optimizers_in_another_order() -> None:
    for sync in MODES:
        models, references = [[make_model(i) for i in range(TASKS)] for _ in range(2)]
        optimizers = [distributed(model, sync) for model in models]
        plain = [sgd(model) for model in references]
        for step in range(4):
            for optimizer in [*optimizers, *plain]:
                optimizer.zero_grad()
            turn = (hvd.rank() + step) % TASKS
            combined(models, [(turn + i) % TASKS for i in range(TASKS)], step).backward()
            for optimizer in optimizers:
                optimizer.step()
            for reference, one in zip(references, plain, strict=True):
                loss_of(reference, step, everything).backward()
                one.step()
        for model, reference, optimizer in zip(models, references, optimizers, strict=True):
            optimizer.wait()
            close(model, reference)
            same_on_all_ranks(model.parameters())


def _tasks_of(rank: int, step: int) -> list[int]:
    """Returns the tasks in the batch of a rank."""
    return [(rank + step) % TASKS] if step % 2 else [(rank + step) % TASKS, (rank + step + 1) % TASKS]


def case_a_batch_of_some_tasks() -> None:
    """No backward pass reaches all optimizers, and two ranks reach different ones."""
    for sync in MODES:
        models, references = [[make_model(i) for i in range(TASKS)] for _ in range(2)]
        optimizers = [distributed(model, sync) for model in models]
        plain = [sgd(model) for model in references]
        for step in range(4):
            for optimizer in [*optimizers, *plain]:
                optimizer.zero_grad()
            combined(models, _tasks_of(hvd.rank(), step), step).backward()
            for optimizer in optimizers:
                optimizer.step()
            for rank in range(hvd.size()):
                part = lambda t, r=rank: t.view(hvd.size(), -1, *t.shape[1:])[r]  # noqa: E731
                for task in _tasks_of(rank, step):
                    (loss_of(references[task], step, part) / hvd.size()).backward()
            for one in plain:
                one.step()
        for model, reference, optimizer in zip(models, references, optimizers, strict=True):
            optimizer.wait()
            close(model, reference)
            same_on_all_ranks(model.parameters())


def case_a_backward_for_each_task_in_another_order() -> None:
    for sync in ("backward", "step"):
        models, references = [[make_model(i) for i in range(2)] for _ in range(2)]
        optimizers = [distributed(model, sync) for model in models]
        plain = [sgd(model) for model in references]
        for step in range(3):
            for optimizer in [*optimizers, *plain]:
                optimizer.zero_grad()
            for task in (0, 1) if (hvd.rank() + step) % 2 else (1, 0):
                loss_of(models[task], step).backward()
            for optimizer in optimizers:
                optimizer.step()
            for reference, one in zip(references, plain, strict=True):
                loss_of(reference, step, everything).backward()
                one.step()
        for model, reference in zip(models, references, strict=True):
            close(model, reference)


class Adapted(nn.Module):
    """A model with frozen ends whose trainable weights are all in re-entrant checkpoints, as with LoRA."""

    def __init__(self, nested: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding, self.head = nn.Linear(7, 8).double(), nn.Linear(8, 3).double()
        self.blocks = nn.ModuleList([nn.Linear(8, 8).double() for _ in range(3)])
        self.nested = nested
        for layer in (self.embedding, self.head):
            layer.requires_grad_(False)

    def forward(self, x: Tensor, checkpointed: bool) -> Tensor:
        hidden = self.embedding(x).requires_grad_()
        if not checkpointed:
            for block in self.blocks:
                hidden = torch.tanh(block(hidden))
            return self.head(hidden)
        if self.nested:
            return self.head(checkpoint(self._all, hidden, use_reentrant=True))
        return self.head(self._all(hidden))

    def _all(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = checkpoint(lambda h, b=block: torch.tanh(b(h)), hidden, use_reentrant=True)
        return hidden


def case_all_weights_inside_reentrant_checkpoints() -> None:
    for sync in MODES:
        for nested in (False, True):
            model, reference = Adapted(nested), Adapted(nested)
            optimizer, plain = [
                torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1) for net in (model, reference)
            ]
            optimizer = hvd.DistributedOptimizer(optimizer, sync=sync)
            for step in range(3):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                plain.zero_grad()
                nn.functional.cross_entropy(model(mine(inputs), True), mine(labels)).backward()
                nn.functional.cross_entropy(reference(inputs, False), labels).backward()
                if sync == "backward":
                    for p, q in zip(model.blocks.parameters(), reference.blocks.parameters(), strict=True):
                        assert torch.allclose(p.grad, q.grad, rtol=1e-12, atol=1e-12), "not combined in backward()"
                optimizer.step()
                plain.step()
            optimizer.wait()
            close(model.blocks, reference.blocks)


class _Fails(torch.autograd.Function):
    """An identity that raises in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        del ctx, grads
        raise ValueError("no gradient")


def case_a_backward_that_fails_behind_a_checkpoint() -> None:
    """The inner backward pass ends well and the outer one fails: no step may use the gradients."""
    layer = nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
    for bad in (True, False, True, False):
        optimizer.zero_grad()
        x = torch.ones(1, 2, requires_grad=True)
        hidden = checkpoint(layer, _Fails.apply(x) if bad else x, use_reentrant=True)
        if bad:
            raises(hidden.sum().backward, ValueError, "no gradient")
            raises(optimizer.step, RuntimeError, "ended with an exception")
        else:
            hidden.sum().backward()
            optimizer.step()
    same_on_all_ranks(layer.parameters())


class _Turned(torch.autograd.Function):
    """The identity; its gradient is `turn` of the incoming gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, turn: Any) -> Tensor:
        ctx.turn = turn
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return ctx.turn(grads[0]), None


def case_a_gradient_becomes_a_negated_view() -> None:
    def negated(grad: Tensor) -> Tensor:
        return torch._neg_view(torch.neg(grad))

    for sync in MODES:
        weights = [nn.Parameter(torch.zeros(5, dtype=torch.float64)) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), sync=sync)
        factor = torch.full((5,), hvd.rank() + 1.0, dtype=torch.float64)
        for step in range(4):
            optimizer.zero_grad()
            turn = negated if (step + hvd.rank()) % 2 and step else torch.clone
            sum(_Turned.apply(weight, turn).mul(factor).sum() for weight in weights).backward()
            assert weights[0].grad is not None
            optimizer.step()
        optimizer.wait()
        mean = (hvd.size() + 1) / 2
        for weight in weights:
            assert torch.equal(weight.detach(), torch.full((5,), -4 * mean, dtype=torch.float64)), weight
