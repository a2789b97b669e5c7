"""States whose commits compare a part of them with other ranks; the framework has the tensors."""

from __future__ import annotations

from sirtaki.basics import in_loop, is_elastic, option, size
from sirtaki.elastic._comparison import Comparison
from sirtaki.elastic.state import ObjectState


class ComparedState(ObjectState):
    """Base class of such states. Derived classes set `_comparison`, and call _compare() at the end of sync()."""

    _comparison: Comparison

    def _compare(self) -> None:
        """Compares from here on, if all ranks have something to compare. Collective in elastic jobs."""
        how = option("elastic.divergence") if in_loop() and is_elastic() and size() > 1 else "off"
        self._comparison.begin(how if how != "off" and self._comparison.is_possible() else "off")

    def _offer(self) -> None:
        self._comparison.offer()

    def _offers(self) -> bool:
        return self._comparison.offers

    def _exchange(self, change: int) -> int:
        if not self._comparison.is_on:
            return super()._exchange(change)
        agreed, has_got_values = self._comparison.meet(change)
        if has_got_values:
            self.save()
        return agreed
