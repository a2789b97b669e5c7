"""The name of Horovod for programs under `sirtakirun --horovod`: they import Sirtaki.

Only that option puts this folder on the path of a program. docs/horovod.md compares every function.
"""

from __future__ import annotations

from horovod import _unsupported

#: The release with this interface; after the plus sign the implementation.
__version__ = "0.28.1+sirtaki"

_unsupported.refuse_modules()
_unsupported.warn_ignored_variables()


def __getattr__(name: str) -> object:
    raise _unsupported.missing(__name__, name)
