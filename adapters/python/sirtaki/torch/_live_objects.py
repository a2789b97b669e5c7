"""Objects of the program that nobody has handed over, found by the garbage collector of Python."""

from __future__ import annotations

import gc
from typing import TypeVar

T = TypeVar("T")


def live_objects(kind: type[T]) -> list[T]:
    """Returns the objects of a class or its subclasses, without those that nobody uses any more.

    Their order is another one on each rank.
    """
    if not _tracked(kind):
        return []
    gc.collect()
    return _tracked(kind)


def _tracked(kind: type[T]) -> list[T]:
    # The type, because isinstance() asks proxies of libraries for their class, which may load them.
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]
