"""Names of horovod.torch that are not there, each with what to do without."""

from __future__ import annotations

_ABSENT = {
    "check_extension": "not needed; one build serves every version of torch, and sirtakirun --check looks at hosts",
}


def explain(name: str) -> str:
    """The text of the AttributeError for a name that sirtaki.torch has not."""
    why = _ABSENT.get(name)
    told = "" if why is None else f": {why} (docs/horovod.md)"
    return f"module 'sirtaki.torch' has no attribute '{name}'{told}"
