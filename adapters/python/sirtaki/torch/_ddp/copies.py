"""Copies and pickles of accelerated models, whose gradients the process group averages."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


class CopiedReducer:
    """Takes the place of the BucketReducer in a copy of a model."""

    def __init__(self) -> None:
        self._called = False

    def hook(self, bucket: Any) -> Any:
        """Averages a bucket by the default process group."""
        return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]

    def before_forward(self, model: Any) -> None:
        """Switches the reducer of DistributedDataParallel on in the first call: it was off if the copied one was."""
        if not self._called:
            self._called = model.require_backward_grad_sync = True


@torch.compiler.disable
def before_forward(reducer: Any, model: Any, inputs: Any) -> None:
    """Hook of the model before its forward pass; a copy of it has a CopiedReducer."""
    del inputs
    reducer.before_forward(model)


def is_copy(model: Any) -> bool:
    """Returns True for the copy of an accelerated model."""
    hooks = model._comm_hooks
    return bool(hooks) and all(isinstance(state, CopiedReducer) for _, state in hooks)
