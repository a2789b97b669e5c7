"""Options of the launcher for programs with DistributedDataParallel over the backend `sirtaki`, which stay unchanged.

A model is accelerated in its first forward pass with gradients, when the program has made its hooks and its optimizer.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from sirtaki import basics
from sirtaki.compression import option_text
from sirtaki.errors import require
from sirtaki.local_updates import local_choice
from sirtaki.torch._optimizer_class import DistributedMarker
from sirtaki.torch.compression import Compression
from sirtaki.torch.ddp import accelerate, is_shared
from sirtaki.torch.distributed.group import SirtakiGroup


class _Automatic:
    """Accelerates models of DistributedDataParallel in their first forward pass, if options ask for it."""

    def __init__(self) -> None:
        self._watches = False
        self._seen: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()

    def watch(self) -> None:
        """Looks at every model from its next forward pass on. Again: does nothing."""
        if self._watches:
            return
        self._watches = True
        plain: Any = DistributedDataParallel.forward

        @functools.wraps(plain)
        def forward(model: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and model not in self._seen:
                self._seen.add(model)
                _look_at(model)
            return plain(model, *inputs, **kwargs)

        # The forward pass of the model inside is still compiled.
        DistributedDataParallel.forward = torch.compiler.disable(forward, recursive=False)  # type: ignore[method-assign]


_automatic = _Automatic()


def follow_options() -> None:
    """Makes models of DistributedDataParallel follow the options. Called for each process group of the backend."""
    if _compresses() or _makes_local_updates():
        _automatic.watch()


def _compresses() -> bool:
    return option_text() not in ("", "none")


def _makes_local_updates() -> bool:
    return local_choice(None, basics.option("local.updates")) is not None


@torch.compiler.disable
def _look_at(model: DistributedDataParallel) -> None:
    if not basics.is_initialized() or not isinstance(model.process_group, SirtakiGroup) or model._comm_hooks:
        return
    if not _compresses() and not _makes_local_updates():
        return
    found = _optimizers_of(model.parameters())
    if any(isinstance(optimizer, DistributedMarker) and not is_shared(optimizer) for optimizer in found):
        return
    require(
        len(found) == 1 or not _makes_local_updates(),
        f"local.updates needs one optimizer with the parameters of the model before its first forward pass, and the "
        f"program has {len(found)}: make one before, or call sirtaki.torch.ddp.accelerate(model, optimizer) with "
        "local_updates=1 for a model without local updates",
    )
    accelerate(model, found[0] if len(found) == 1 else None, compression=Compression.none)


def _optimizers_of(params: Iterable[Tensor]) -> list[torch.optim.Optimizer]:
    """Returns the optimizers of this process that have any of `params`, without those that wrap another one."""
    mine = {id(p) for p in params}
    # The type, because isinstance() asks proxies of libraries for their class, which may load them.
    every = [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]
    found = [
        one
        for one in every
        if any(id(p) in mine for group in vars(one).get("param_groups", ()) for p in group["params"])
    ]
    ids = {id(one) for one in found}
    return [one for one in found if not any(id(part) in ids for part in vars(one).values())]
