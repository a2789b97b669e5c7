"""horovod.runner: the part of horovodrun that elastic tests call from Python; `sirtakirun --horovod` does the work."""

from __future__ import annotations


def __getattr__(name: str) -> object:
    instead = "; use sirtaki.run()" if name == "run" else "; docs/horovod.md shows what there is"
    raise AttributeError(f"module 'horovod.runner' of Sirtaki has no attribute '{name}'{instead}")
