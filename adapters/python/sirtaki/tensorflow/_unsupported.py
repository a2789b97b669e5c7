"""Names of horovod.tensorflow that are not there, each with what to do without."""

from __future__ import annotations

_ABSENT = {
    "BroadcastGlobalVariablesHook": "for sessions of TensorFlow 1; use broadcast_variables(model.variables, 0)",
    "check_extension": "not needed; one build serves TensorFlow 2.16 to 2.21",
}


def explain(name: str) -> str:
    """The text of the AttributeError for a name that sirtaki.tensorflow has not."""
    why = _ABSENT.get(name)
    told = "" if why is None else f": {why} (docs/tensorflow.md)"
    return f"module 'sirtaki.tensorflow' has no attribute '{name}'{told}"
