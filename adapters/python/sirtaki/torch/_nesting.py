"""Tells whether a backward runs inside another one, as with re-entrant activation checkpointing."""

from __future__ import annotations

import sys
from types import FrameType

from torch.autograd.function import BackwardCFunction

_NODE = BackwardCFunction.apply.__code__


def inside_nested_backward() -> bool:
    """True when the calling code runs inside the backward() of a Python autograd function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _NODE:
            return True
        frame = frame.f_back
    return False
