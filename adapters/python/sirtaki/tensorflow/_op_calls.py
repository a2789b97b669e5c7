"""Calls of the operations, in eager code and in graphs: names, order, errors."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops import control_flow_util

from sirtaki import errors
from sirtaki.ops import ReduceOp
from sirtaki.process_sets import ProcessSet
from sirtaki.tensorflow._errors import to_builtin_error, to_sirtaki_error, with_tensorflow_type
from sirtaki.tensorflow._library import operations

_Function = TypeVar("_Function", bound=Callable[..., Any])
_counts: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def public(function: _Function) -> _Function:
    """Decorates a public function: AutoGraph skips it, and failures become exceptions of sirtaki.errors."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except tf.errors.OpError as error:
            converted = to_sirtaki_error(error)
            if converted is error:
                raise
            raise converted from None
        except errors.SirtakiError as error:
            if tf.executing_eagerly():
                raise with_tensorflow_type(error) from error
            raise to_builtin_error(error) from error

    return tf.autograph.experimental.do_not_convert(called)


def count_in_graph(key: str) -> int:
    """Returns the number of earlier calls with `key` in the function that is being built; 0 in eager code."""
    if tf.executing_eagerly():
        return 0
    counter = _counts.setdefault(_function(), Counter())
    counter[key] += 1
    return counter[key] - 1


def _function() -> Any:
    """Returns the graph of the function that is being built: for loops and branches the surrounding one."""
    graph = tf_ops.get_default_graph()
    while type(graph).__name__ != "FuncGraph" and getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph


def names_for(kind: str, name: str | None, count: int) -> str:
    """Returns the names of `count` tensors, as an attribute of an operation.

    In eager code the order of calls replaces a missing name. Operations of a graph run in any order, so their place in
    the graph does, which is the same on all ranks.
    """
    errors.require(
        name is None or (isinstance(name, str) and name != "" and not set(name) & {"\0", "\n"}),
        f"name is {name!r}; it must be text in one line, the same on all ranks, or None",
    )
    if name is None:
        if tf.executing_eagerly():
            return ""
        name = f"{getattr(_function(), 'name', 'graph')}.{kind}.{count_in_graph(kind)}"
    return name if count == 1 else "\n".join(f"{name}.{i}" for i in range(count))


def refuse_xla() -> None:
    """Raises UnsupportedError inside a function that XLA compiles."""
    inside = getattr(control_flow_util, "GraphOrParentsInXlaContext", None)
    if inside is not None and not tf.executing_eagerly() and inside(tf_ops.get_default_graph()):
        raise errors.UnsupportedError(
            "XLA cannot compile operations that wait for other ranks; pass jit_compile=False to tf.function or "
            "model.compile"
        )


def run_independently(op: tf.Operation) -> None:
    """Lets an operation of a tf.function run once its inputs exist, although operations with state run in sequence.

    Has no effect in the body of a loop, of which several iterations may run at a time, and in a branch.
    """
    manager = getattr(op.graph, "experimental_acd_manager", None)
    if manager is not None and type(op.graph).__name__ == "FuncGraph":
        manager.run_independently(op)


def call(name: str, *inputs: Any, **attributes: Any) -> Any:
    """Returns the outputs of one operation of the library."""
    refuse_xla()
    outputs = getattr(operations, name)(*inputs, **attributes)
    if not tf.executing_eagerly():
        first = outputs[0] if isinstance(outputs, (list, tuple)) and outputs else outputs
        if isinstance(first, tf.Tensor):
            run_independently(first.op)
    return outputs


def group_attributes(process_set: ProcessSet, priority: int = 0) -> dict[str, Any]:
    """Returns attributes for the participating ranks and the priority."""
    errors.require(isinstance(process_set, ProcessSet), f"process_set is {process_set!r}; it must be a ProcessSet")
    process_set.rank()  # raises outside the set, and before init()
    ranks = process_set.wire()
    return {"ranks": "" if ranks is None else ",".join(map(str, ranks)), "priority": priority}


def reduce_attributes(op: ReduceOp, scales: tuple[float, float]) -> dict[str, Any]:
    """Returns attributes for the reduction."""
    return {"reduce_op": int(op), "prescale": repr(float(scales[0])), "postscale": repr(float(scales[1]))}


def to_tensors(values: Sequence[Any]) -> list[tf.Tensor]:
    """Returns variables, arrays and IndexedSlices as dense tensors."""
    errors.require(isinstance(values, (list, tuple)), f"expected a list of tensors, not {type(values).__name__}")
    return [tf.convert_to_tensor(value) for value in values]
