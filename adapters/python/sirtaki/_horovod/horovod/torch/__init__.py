"""horovod.torch: sirtaki.torch, with the default of Horovod for `sync`, and its first gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import horovod
from sirtaki import basics
from sirtaki import torch as _torch
from sirtaki.torch import *  # noqa: F403


def _as_horovod(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps DistributedOptimizer: sync="step" unless the program or an option chooses."""

    @functools.wraps(make)
    def made(*arguments: Any, **named: Any) -> Any:
        if named.get("sync") is None and basics.option_source("torch.sync") == "default":
            named["sync"] = "step"
        return make(*arguments, **named)

    return made


def broadcast_optimizer_state(optimizer: Any, root_rank: int = 0, model: Any = None) -> None:
    """Broadcasts the state; without a state on the root, gradients that are None become zeros, as in Horovod.

    Sparse parameters, those of SparseAdam and of sparse embeddings of `model`, keep None.
    """
    _torch.broadcast_optimizer_state(optimizer, root_rank, model)
    if optimizer.state or "SparseAdam" in (kind.__name__ for kind in type(optimizer).__mro__):
        return
    embeddings = [m for m in model.modules() if getattr(m, "sparse", False)] if model is not None else []
    sparse = {id(p) for m in embeddings for p in m.parameters()}
    for param in (p for group in optimizer.param_groups for p in group["params"]):
        if param.requires_grad and param.grad is None and id(param) not in sparse:
            param.grad = param.detach().new_zeros(param.shape)


DistributedOptimizer = _as_horovod(_torch.DistributedOptimizer)
__version__ = horovod.__version__
__all__ = list(_torch.__all__)


def __getattr__(name: str) -> Any:
    return getattr(_torch, name)
