"""Remembers residuals and local updates in states that optimizers load before accelerate().

Trainers load the checkpoint of a new optimizer as soon as they have made it, and torch drops what it does not know.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torch.optim import Optimizer

from sirtaki.torch._optimizer.local_sgd import KEY as LOCAL_KEY
from sirtaki.torch._optimizer.residuals import KEY
from sirtaki.torch._optimizer_class import DistributedMarker


class LoadedStates:
    """Additions in states that plain optimizers have loaded."""

    def __init__(self) -> None:
        self._watches = False
        self._loaded: weakref.WeakKeyDictionary[Optimizer, dict[str, Any]] = weakref.WeakKeyDictionary()

    def watch(self) -> None:
        """Looks at every state that is loaded from now on. Again: does nothing."""
        if self._watches:
            return
        self._watches = True
        plain: Any = Optimizer.load_state_dict

        @functools.wraps(plain)
        def load_state_dict(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
            added = {key: state_dict[key] for key in (KEY, LOCAL_KEY) if key in state_dict}
            plain(optimizer, state_dict)
            if isinstance(optimizer, DistributedMarker):
                return
            self._loaded.pop(optimizer, None)  # those of an earlier checkpoint
            if added:
                self._loaded[optimizer] = added

        Optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign,assignment]

    def give_to(self, optimizer: Any) -> None:
        """Gives an accelerated optimizer what it has loaded while it was a plain one."""
        loaded = self._loaded.pop(optimizer, {})
        if KEY in loaded:
            optimizer._sirtaki.residuals.load(loaded[KEY])
        if optimizer._sirtaki_local is not None:
            optimizer._sirtaki_local.load(loaded.get(LOCAL_KEY))


loaded_states = LoadedStates()
