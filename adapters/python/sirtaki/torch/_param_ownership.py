"""Records which optimizer combines the gradient of which parameter.

The optimizer made last owns a parameter: two would write into the memory of one gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Owner(Protocol):
    """Combines gradients of parameters."""

    def supersede(self) -> None:
        """Called when another owner takes a parameter. Finishes work in flight, then leaves gradients alone."""

    def check_join(self) -> None:
        """Refuses join() while there are gradients that no step has used."""


class ParamOwnership:
    """Maps parameters to owners. An owner keeps its parameters alive until release()."""

    def __init__(self) -> None:
        self._owners: dict[int, Owner] = {}
        self._several = False

    def claim(self, owner: Owner, params: Sequence[Tensor]) -> None:
        """Makes `owner` own `params` until release(); previous owners of any of them are superseded."""
        before = {id(other): other for p in params if (other := self._owners.get(id(p), owner)) is not owner}
        for other in before.values():
            other.supersede()
        self._owners.update((id(p), owner) for p in params)
        self._count()

    def release(self, owner: Owner) -> None:
        """Ends claim() of all parameters of `owner`."""
        self._owners = {key: other for key, other in self._owners.items() if other is not owner}
        self._count()

    def _count(self) -> None:
        self._several = len({id(owner) for owner in self._owners.values()}) > 1

    def has_several(self) -> bool:
        """Returns True if there is more than one owner. Constant time: every step asks."""
        return self._several

    def check_join(self) -> None:
        """Calls Owner.check_join() of every owner."""
        for owner in {id(owner): owner for owner in self._owners.values()}.values():
            owner.check_join()


param_owners = ParamOwnership()
