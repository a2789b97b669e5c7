"""GradientReducer: combines a list of gradients over all ranks, in eager code and in tf.function.

Dense gradients go into a stream (the same tensors every step, planned once): one operation for each passes it to the
runtime once it is computed, and a last one ends the step. So communication overlaps with the rest of the backward pass,
and gradients are compressed by the choice of compression. IndexedSlices are gathered by name.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from sirtaki import _core, _growth, basics, errors
from sirtaki._dtypes import summed_code
from sirtaki.compression import for_optimizer, option_text, refuse_momentum
from sirtaki.errors import require
from sirtaki.ops import ReduceOp
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.tensorflow._errors import noting_error
from sirtaki.tensorflow._library import renew_stream
from sirtaki.tensorflow._op_calls import call, count_in_graph, public, refuse_xla
from sirtaki.tensorflow.compression import Compression, choice_of
from sirtaki.tensorflow.ops import Average, Sum, allreduce, grouped_allreduce, reduce_op_of


@dataclass(frozen=True)
class ReduceOptions:
    """Options of the reduction of gradients; the same on all ranks."""

    op: ReduceOp
    codec: str | None  # choice of the runtime, as text; None: the options decide
    compressor: Any  # compressor of the program, or None
    prescale: float
    postscale: float
    sparse_as_dense: bool
    process_set: ProcessSet
    optimizer: str  # "sgd", "adam" or "other"; see for_optimizer()


def choose(
    *,
    compression: Any = Compression.none,
    op: Any = None,
    gradient_predivide_factor: float = 1.0,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    optimizer: str = "other",
) -> ReduceOptions:
    """Returns checked options of DistributedGradientTape and DistributedOptimizer. Raises ValueError."""
    codec, compressor = choice_of(compression)
    op = reduce_op_of(None, op)
    if op == ReduceOp.ADASUM:
        raise errors.UnsupportedError(
            "op=Adasum combines the changes of steps, which DistributedOptimizer of sirtaki.torch does; here "
            "allreduce() takes it, tapes and optimizers take Average"
        )
    factor = gradient_predivide_factor
    usable = isinstance(factor, (int, float)) and 0 < factor < float("inf")
    require(usable, f"gradient_predivide_factor is {factor!r}; it must be a number above 0")
    require(factor == 1 or op == Average, "gradient_predivide_factor needs op=Average")
    require(isinstance(process_set, ProcessSet), f"process_set is {process_set!r}; it must be a ProcessSet")
    if codec is not None:
        refuse_momentum(codec)
    compressed = codec is not None and codec != "none"
    if compressed and op not in (Average, Sum):
        raise errors.UnsupportedError(f"compression with op={op.name}; gradients are compressed for Average and Sum")
    if compressed and process_set != global_process_set:
        raise errors.UnsupportedError("compression among a process set; gradients are compressed among all ranks")
    return ReduceOptions(op, codec, compressor, 1.0 / factor, float(factor), sparse_as_dense, process_set, optimizer)


class _Streams:
    """Streams of this session by their contents, so that a function that is traced again uses the same ones."""

    def __init__(self) -> None:
        self._by_key: dict[Any, Any] = {}
        self._opened: Counter[str] = Counter()

    def of(self, name: str, key: Any, open_stream: Any) -> Any:
        """Returns the stream of `key`; calls `open_stream(its name)` on first use, which waits for all ranks."""
        if (name, key) not in self._by_key:
            self._by_key[name, key] = open_stream(f"{name}.{self._opened[name]}")
            self._opened[name] += 1
        return self._by_key[name, key]

    def forget(self) -> None:
        """Drops all streams, because the session has ended."""
        self._by_key.clear()
        self._opened.clear()


_streams = _Streams()
basics.on_shutdown(_streams.forget)

#: Ids that operations of traced functions have in the place of that of a stream; those of streams are larger.
_traced_ids = itertools.count(1)


def gradient_name(variable: Any, place: int) -> str:
    """Returns the name of a gradient in messages and rules."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or f"gradient.{place}")


def _variable_id(variable: Any) -> str | None:
    """Returns an id that separates variables of the same name in this process: each has its own residual."""
    for held in (variable, getattr(variable, "_value", None)):
        unique_id = getattr(held, "_unique_id", None)
        if isinstance(unique_id, str):
            return unique_id
    return None


def _unique(names: Sequence[str]) -> list[str]:
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        out.append(name if seen[name] == 0 else f"{name}.{seen[name]}")
        seen[name] += 1
    return out


class GradientReducer:
    """Combines the gradients of one optimizer or tape.

    `name` is the same on all ranks, and for all reducers that ever combine the same gradients.
    """

    def __init__(self, name: str, options: ReduceOptions) -> None:
        self._name = name
        self._options = options

    @public
    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the combined gradients. Collective; the same gradients are None on all ranks, and stay None.

        A rank outside the process set gets its own gradients back.
        """
        refuse_xla()
        options = self._options
        grads = list(grads)
        process_set = options.process_set
        process_set.wire()
        # The number of ranks of an elastic job may change after a function has been traced.
        alone = process_set.size() == 1 and not basics.is_elastic()
        if alone or not process_set.included():
            as_dense = options.sparse_as_dense
            return [tf.convert_to_tensor(g) if as_dense and g is not None else g for g in grads]
        names = _unique([gradient_name(variable, i) for i, variable in enumerate(variables)])
        dense: list[int] = []
        for i, grad in enumerate(grads):
            if isinstance(grad, tf.IndexedSlices) and not options.sparse_as_dense:
                joined = allreduce(
                    grad,
                    op=options.op,
                    name=f"{self._name}.{names[i]}.{count_in_graph(f'{self._name}.{names[i]}')}",
                    process_set=process_set,
                    prescale_factor=options.prescale,
                    postscale_factor=options.postscale,
                )
                grads[i] = _sum_duplicate_rows(joined)
            elif grad is not None:
                grads[i] = tf.convert_to_tensor(grad)
                dense.append(i)
        combined = self._dense([grads[i] for i in dense], [variables[i] for i in dense], [names[i] for i in dense])
        for i, grad in zip(dense, combined, strict=True):
            grads[i] = grad
        return grads

    def _dense(self, grads: list[tf.Tensor], variables: list[Any], names: list[str]) -> list[tf.Tensor]:
        options = self._options
        if not grads:
            return []
        shapes = [_shape(grad, variable) for grad, variable in zip(grads, variables, strict=True)]
        in_stream = options.op in (Average, Sum) and options.compressor is None and None not in shapes
        if in_stream and options.process_set == global_process_set:
            return self._in_stream(grads, names, shapes, [_variable_id(variable) for variable in variables])
        if options.codec not in (None, "none") and None in shapes:
            at = names[shapes.index(None)]
            raise errors.UnsupportedError(f"compression of {at}, a gradient whose shape TensorFlow does not know")
        return grouped_allreduce(
            grads,
            op=options.op,
            compression=options.compressor or Compression.none,
            prescale_factor=options.prescale,
            postscale_factor=options.postscale,
            process_set=options.process_set,
            name=f"{self._name}.{count_in_graph(self._name)}",
        )

    def _in_stream(
        self, grads: list[tf.Tensor], names: list[str], shapes: list[Any], variables: list[str | None]
    ) -> list[tf.Tensor]:
        options = self._options
        dtypes = [summed_code(grad.dtype.name) for grad in grads]
        text = option_text() if options.codec is None else options.codec
        codec = for_optimizer(text, options.optimizer)
        how = (int(options.op), options.prescale, options.postscale, codec, 0)
        key = (tuple(names), tuple(shapes), tuple(dtypes), how, tuple(variables))

        refuse_momentum(text)

        def open_stream(name: str) -> Any:
            tensors = [(0, dtype, 0, 0, shape, None) for dtype, shape in zip(dtypes, shapes, strict=True)]
            with _growth.explaining_new_ranks():
                return _core.Stream(name, names, tensors, None, how)

        # Two uses in one graph may run at the same time.
        place_in_graph = (key, count_in_graph(repr((self._name, key))))
        stream, opened = _stream_here(self._name, place_in_graph, open_stream)
        tokens: list[tf.Tensor] = []
        count = len(grads)
        with tf.control_dependencies(opened):
            number = call("sirtaki_step_number")
        # The order of backpropagation, because TensorFlow keeps operations with state in program order.
        for index in reversed(range(count)):
            place = {"stream": stream, "index": index, "count": count}
            tokens.append(call("sirtaki_ready", grads[index], number, **place))
        reduced = call("sirtaki_finish", tokens[::-1], number, stream=stream)
        for tensor, shape in zip(reduced, shapes, strict=True):
            tensor.set_shape(shape)
        return list(reduced)


def _stream_here(name: str, key: Any, open_stream: Any) -> tuple[int, list[Any]]:
    """Returns the id of a stream for operations made here, and the operations that have to come before them.

    A function of an elastic job opens its streams when it runs, not when it is traced: after a change of ranks some
    ranks have traced it before, and all have to open them in the same order, in which other operations may wait.
    """
    if tf.executing_eagerly() or not basics.is_elastic():
        return _streams.of(name, key, open_stream).id, []
    traced = next(_traced_ids)

    def opened() -> bool:
        with noting_error():
            renew_stream(traced, _streams.of(name, key, open_stream).id)
        return True

    return traced, [tf.py_function(opened, [], tf.bool)]


def _sum_duplicate_rows(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Adds up rows with the same index, which an optimizer would apply as two gradients."""
    rows, places = tf.unique(slices.indices)
    return tf.IndexedSlices(
        tf.math.unsorted_segment_sum(slices.values, places, tf.size(rows)), rows, slices.dense_shape
    )


def _shape(grad: tf.Tensor, variable: Any) -> tuple[int, ...] | None:
    """Returns the shape, which is part of the plan of the stream; None if it is unknown before the step."""
    for shape in (grad.shape, getattr(variable, "shape", None)):
        dims = None if shape is None else tf.TensorShape(shape)
        if dims is not None and dims.is_fully_defined():
            return tuple(dims.as_list())
    return None
