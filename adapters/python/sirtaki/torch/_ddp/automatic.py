"""Options of the launcher for programs with DistributedDataParallel over the backend `sirtaki`, which stay unchanged.

A model is accelerated in its first forward pass with gradients, when the program has made its hooks and its optimizer.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from sirtaki import basics
from sirtaki.compression import option_text
from sirtaki.errors import require
from sirtaki.local_updates import local_choice
from sirtaki.torch._ddp.loaded_states import loaded_states
from sirtaki.torch._live_objects import live_objects
from sirtaki.torch._optimizer_class import DistributedMarker
from sirtaki.torch.compression import Compression
from sirtaki.torch.ddp import accelerate, has_part
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
                self._look_at(model)
            return plain(model, *inputs, **kwargs)

        # The forward pass of the model inside is still compiled.
        DistributedDataParallel.forward = torch.compiler.disable(forward, recursive=False)  # type: ignore[method-assign]
        loaded_states.watch()

    @torch.compiler.disable
    def _look_at(self, model: DistributedDataParallel) -> None:
        if not basics.is_initialized() or not isinstance(model.process_group, SirtakiGroup) or model._comm_hooks:
            return
        if not _compresses() and not _makes_local_updates():
            return
        found: list[Any] = _optimizers_of(model.parameters())
        if any(isinstance(optimizer, DistributedMarker) and not has_part(optimizer) for optimizer in found):
            return
        require(
            bool(found) or not _makes_local_updates(),
            "local.updates needs the optimizer of the model before its first forward pass: make it before, or call "
            "sirtaki.torch.ddp.accelerate(model, local_updates=1) for a model without local updates",
        )
        if not _makes_local_updates() and _share_any(found):
            # Their order is another one on each rank, and compression needs none of them.
            found = []
        accelerate(model, found, compression=Compression.none)
        for optimizer in found:
            if optimizer._sirtaki_local is not None:
                optimizer._sirtaki_local.may_lack_state = True


_automatic = _Automatic()


def follow_options() -> None:
    """Makes models of DistributedDataParallel follow the options. Called for each process group of the backend."""
    if _compresses() or _makes_local_updates():
        _automatic.watch()


def _compresses() -> bool:
    return option_text() not in ("", "none")


def _makes_local_updates() -> bool:
    return local_choice(None, basics.option("local.updates")) is not None


def _optimizers_of(params: Iterable[Tensor]) -> list[Optimizer]:
    """Returns the optimizers of this process that have any of `params`, without those that wrap another one.

    The order is that of the parameters, because the collector of Python keeps objects in another order on each rank.
    """
    index = {id(p): i for i, p in enumerate(params)}
    places: list[tuple[int, Optimizer]] = []
    for one in live_objects(Optimizer):
        mine = [index.get(id(p)) for group in vars(one).get("param_groups", ()) for p in group["params"]]
        first = min((i for i in mine if i is not None), default=None)
        if first is not None:
            places.append((first, one))
    ids = {id(one) for _, one in places}
    found = [(i, one) for i, one in places if not any(id(part) in ids for part in vars(one).values())]
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def _share_any(optimizers: Iterable[Optimizer]) -> bool:
    """Returns True if a parameter is in two of the optimizers."""
    held = [{id(p) for group in one.param_groups for p in group["params"]} for one in optimizers]
    return sum(map(len, held)) > len(set().union(*held))
