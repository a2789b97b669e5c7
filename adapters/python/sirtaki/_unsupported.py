"""Names of horovod.torch and horovod.tensorflow that Sirtaki does not have, each with its replacement."""

from __future__ import annotations

_REASONS = {
    "sirtaki.torch": {
        "check_extension": "not needed; one build serves every version of torch, and sirtakirun --check looks at hosts",
    },
    "sirtaki.tensorflow": {
        "BroadcastGlobalVariablesHook": "for sessions of TensorFlow 1; use broadcast_variables(model.variables, 0)",
        "check_extension": "not needed; one build serves TensorFlow 2.16 to 2.21",
    },
}
_PAGES = {"sirtaki.torch": "docs/horovod.md", "sirtaki.tensorflow": "docs/tensorflow.md"}


def missing_attribute(module: str, name: str) -> AttributeError:
    """Returns the error for a name that `module`, one of the adapters, does not have."""
    import sirtaki

    reason = _REASONS[module].get(name)
    advice = "" if reason is None else f": {reason} ({_PAGES[module]})"
    if name in sirtaki.__all__:
        advice = f"; it is sirtaki.{name}"
    return AttributeError(f"module '{module}' has no attribute '{name}'{advice}")
