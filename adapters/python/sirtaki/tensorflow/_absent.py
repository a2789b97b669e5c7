"""Names of horovod.tensorflow that are not there, each with what to do without."""

from __future__ import annotations

_ABSENT = {
    "elastic": "ranks cannot join or leave a running job yet; save checkpoints and start the job again",
    "SyncBatchNormalization": "not there yet; keras.layers.GroupNormalization needs no other rank",
    "PartialDistributedGradientTape": "not there yet; take the gradients of local layers from a tape of their own",
    "BroadcastGlobalVariablesHook": "for sessions of TensorFlow 1; use broadcast_variables(model.variables, 0)",
    "broadcast_global_variables": "for graphs of TensorFlow 1; use broadcast_variables(model.variables, 0)",
    "broadcast_object_fn": "for sessions of TensorFlow 1; use broadcast_object()",
    "check_extension": "not needed; one build serves TensorFlow 2.16 to 2.21",
}


def explain(name: str) -> str:
    """The text of the AttributeError for a name that sirtaki.tensorflow has not."""
    why = _ABSENT.get(name)
    told = "" if why is None else f": {why} (docs/tensorflow.md)"
    return f"module 'sirtaki.tensorflow' has no attribute '{name}'{told}"
