"""Which optimizer combines the gradient of which parameter: the one made last, as two would write into one memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Owner(Protocol):
    """Combines gradients."""

    def supersede(self) -> None:
        """Another owner has one of its parameters from now on: ends what is in flight and leaves gradients alone."""

    def check_join(self) -> None:
        """Refuses join() while there are gradients that no step has used."""


class ParamOwnership:
    """Owners by parameter. An owner keeps its parameters alive until release()."""

    def __init__(self) -> None:
        self._owners: dict[int, Owner] = {}
        self._several = False

    def claim(self, owner: Owner, params: Sequence[Tensor]) -> None:
        """`owner` has `params` until release(); those that had any of them are superseded."""
        before = {id(other): other for p in params if (other := self._owners.get(id(p), owner)) is not owner}
        for other in before.values():
            other.supersede()
        self._owners.update((id(p), owner) for p in params)
        self._count()

    def release(self, owner: Owner) -> None:
        """Ends claim()."""
        self._owners = {key: other for key, other in self._owners.items() if other is not owner}
        self._count()

    def _count(self) -> None:
        self._several = len({id(owner) for owner in self._owners.values()}) > 1

    def has_several(self) -> bool:
        """True when there is more than one owner. Asked in every step."""
        return self._several

    def check_join(self) -> None:
        """Asks all owners, see Owner."""
        for owner in {id(owner): owner for owner in self._owners.values()}.values():
            owner.check_join()


param_owners = ParamOwnership()
