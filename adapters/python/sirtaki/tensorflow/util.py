"""Helpers with the names of horovod.tensorflow.util."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Returns tf.executing_eagerly()."""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    """Returns tf.function(function)."""
    return tf.function(function)


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """Calls `function` once for the same arguments, in eager code and in graphs separately."""
    known: dict[Any, Any] = {}

    @functools.wraps(function)
    def cached(*arguments: Any) -> Any:
        key = (arguments, _executing_eagerly())
        if key not in known:
            known[key] = function(*arguments)
        return known[key]

    return cached


def vars_to_refs(vars: Any) -> Any:
    """Returns the variables `vars`, one or nested lists of them, as hashable references, in tuples."""
    return tuple(vars_to_refs(v) for v in vars) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Returns the variables of `refs`, which vars_to_refs() made."""
    return [refs_to_vars(r) for r in refs] if isinstance(refs, tuple) else refs.deref()
