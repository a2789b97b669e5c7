"""horovod.runner: the part of horovodrun that elastic tests call from Python; `sirtakirun --horovod` does the work."""

from __future__ import annotations

from horovod import _unsupported


def __getattr__(name: str) -> object:
    raise _unsupported.missing(__name__, name)
