"""Backend of Keras on torch: hooks of the reducer of sirtaki.torch combine gradients while backward runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from sirtaki import errors
from sirtaki.compression import choice_of, for_optimizer, option_text, refuse_momentum
from sirtaki.errors import require
from sirtaki.ops import ReduceOp, check_reduce_op
from sirtaki.process_sets import ProcessSet
from sirtaki.torch._optimizer.options import ReducerOptions
from sirtaki.torch._optimizer.parameters import StreamNames
from sirtaki.torch._optimizer.reducer import GradientReducer
from sirtaki.torch.functions import broadcast_parameters

_IN_STREAMS = (ReduceOp.AVERAGE, ReduceOp.SUM)
_names = StreamNames()


class _Reducer:
    """Implements sirtaki.keras._backend.Reducer."""

    def __init__(self, options: ReducerOptions) -> None:
        self._options = options
        self._reducer: GradientReducer | None = None
        self._alone = False
        self._waited = 0.0

    @property
    def name(self) -> str:
        """Name of the reducer; the same on all ranks."""
        return self._options.stream_name

    @property
    def alone(self) -> bool:
        """True while nothing is sent."""
        return self._alone

    @alone.setter
    def alone(self, alone: bool) -> None:
        self._alone = alone
        if self._reducer is not None:
            self._reducer.alone = alone

    def waited_ns(self) -> int:
        """Returns the nanoseconds of waits for gradients since the last call."""
        before, self._waited = self._waited, 0.0 if self._reducer is None else self._reducer.exposed_seconds
        return max(round((self._waited - before) * 1e9), 0)

    def watch(self, variables: Sequence[Any]) -> None:
        """Makes backward combine the gradients of these variables, if streams support the reduction."""
        if self._options.op not in _IN_STREAMS:
            return
        params = [variable.value for variable in variables]
        if not params:
            return
        if self._reducer is not None:
            if [id(p) for p in params] == [id(p) for p in self._reducer.params]:
                return
            self._reducer.close()
        names = [f"{variable.path}.{i}" for i, variable in enumerate(variables)]
        text = self._options.codec
        text = option_text() if text is None and self._options.compressor is None else text
        if text is not None:
            refuse_momentum(text)
        self._reducer = GradientReducer(names, params, self._options)
        self._reducer.alone = self._alone

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the combined gradients: those of the last backward, or others, which are combined by name."""
        reducer = self._reducer
        if self._alone or (reducer is not None and reducer.reduced):
            return list(grads)  # combined already, or computed from combined ones
        own = [variable.value.grad for variable in variables]
        if reducer is not None and all(a is b for a, b in zip(grads, own, strict=True)):
            reducer.synchronize()
            return [variable.value.grad for variable in variables]
        return self._by_name(grads, variables)

    def _by_name(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        options = self._options
        if options.size == 1:
            return list(grads)
        if options.codec not in (None, "none") or options.compressor is not None:
            raise errors.UnsupportedError(
                "compression of gradients that are not those of the last backward(); call loss.backward() and give "
                "apply() the gradients of the variables"
            )
        combined: list[Any] = list(grads)
        work, places = [], []
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if isinstance(grad, Tensor):
                name = f"{options.stream_name}.{variable.path}.{i}"
                scales = (options.prescale, options.postscale)
                work.append(options.ops.allreduce(grad, name, options.op, scales, in_place=False))
                places.append(i)
        for i, handle in zip(places, options.ops.start(work), strict=True):
            combined[i] = handle.wait()
        return combined

    def applied(self) -> None:
        """Ends the step; the next backward may begin."""
        if self._reducer is not None:
            self._reducer.stepped()


class _SharedArrays:
    """Implements sirtaki.keras._backend.ModelArrays with the memory of the variables."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        self._params = [variable.value for variable in variables]
        elsewhere = [p for p in self._params if p.device.type != "cpu"]
        if elsewhere:
            raise errors.UnsupportedError(
                f"local updates merge parameters in CPU memory, and one is on {elsewhere[0].device}; use "
                "local_updates=None"
            )
        self.arrays = [p.detach().numpy() for p in self._params]

    def pull(self) -> None:
        """Refuses variables whose memory was replaced. Raises RuntimeError."""
        for variable, param, array in zip(self.variables, self._params, self.arrays, strict=True):
            if variable.value is not param or param.data_ptr() != array.ctypes.data:
                raise RuntimeError(
                    f"the memory of {variable.path} was replaced after the first step, and local updates merge it "
                    "where it was; change variables by assign()"
                )

    def push(self) -> None:
        """Does nothing: variables and arrays share their memory."""


class TorchBackend:
    """Implements sirtaki.keras._backend.Backend."""

    def choose(
        self,
        *,
        compression: Any,
        op: Any,
        gradient_predivide_factor: float,
        sparse_as_dense: bool,
        process_set: Any,
        optimizer: str,
    ) -> ReducerOptions:
        """Returns checked options of the reduction."""
        op = check_reduce_op(op)
        require(op != ReduceOp.ADASUM, "op must be Average, Sum, Min, Max or Product")
        factor = gradient_predivide_factor
        usable = isinstance(factor, (int, float)) and 0 < factor < float("inf")
        require(usable, f"gradient_predivide_factor is {factor!r}; it must be a number above 0")
        require(factor == 1 or op == ReduceOp.AVERAGE, "gradient_predivide_factor needs op=Average")
        require(isinstance(process_set, ProcessSet), f"process_set is {process_set!r}; it must be a ProcessSet")
        codec, compressor = choice_of(compression)
        if op not in _IN_STREAMS and (compressor is not None or codec not in (None, "none")):
            raise errors.UnsupportedError(
                f"compression with op={op.name}; gradients are compressed for Average and Sum"
            )
        if compressor is None:
            text = option_text() if codec is None else codec
            suited = for_optimizer(text, optimizer)
            codec = codec if suited == text else suited
        mean, scales = op == ReduceOp.AVERAGE, (1.0 / factor, float(factor))
        return ReducerOptions(
            "", "backward", op, mean, codec, compressor, *scales, sparse_as_dense, process_set=process_set
        )

    def group_size(self, choices: ReducerOptions) -> int:
        """Returns the number of participating ranks."""
        return choices.size

    def reducer(self, choices: ReducerOptions, local: bool) -> _Reducer:
        """Returns a reducer for one optimizer."""
        del local
        return _Reducer(replace(choices, stream_name=f"keras.{_names.next(choices.process_set)}"))

    def broadcast(self, variables: Sequence[Any], root_rank: int) -> None:
        """Overwrites Keras variables with those of a rank."""
        broadcast_parameters([(f"keras.{i}", v.value) for i, v in enumerate(variables)], root_rank)

    def memory(self, variables: Sequence[Any]) -> _SharedArrays:
        """Returns the arrays of these variables."""
        return _SharedArrays(variables)

    def after_step(self, optimizer: Any, reducer: _Reducer, training: Any) -> None:
        """Calls after_step() at once."""
        loss, training.loss = training.loss, None
        number = None if loss is None else float(loss.detach().mean()) if isinstance(loss, Tensor) else float(loss)
        rate, count = float(optimizer.learning_rate), int(optimizer._iterations)
        training.after_step(rate, count, number, reducer.waited_ns())

    def in_branch(self) -> bool:
        """Returns False: nothing is traced."""
        return False
