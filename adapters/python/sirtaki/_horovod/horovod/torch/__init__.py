"""horovod.torch: sirtaki.torch, with Horovod's default for when gradients are waited for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import horovod
from sirtaki import basics
from sirtaki import torch as _torch
from sirtaki.torch import *  # noqa: F403


def _as_horovod(make: Callable[..., Any]) -> Callable[..., Any]:
    """DistributedOptimizer() that waits in step() where neither the program nor an option says otherwise."""

    @functools.wraps(make)
    def made(*arguments: Any, **named: Any) -> Any:
        if named.get("sync") is None and basics.option_source("torch.sync") == "default":
            named["sync"] = "step"
        return make(*arguments, **named)

    return made


DistributedOptimizer = _as_horovod(_torch.DistributedOptimizer)
__version__ = horovod.__version__
__all__ = list(_torch.__all__)


def __getattr__(name: str) -> Any:
    return getattr(_torch, name)
