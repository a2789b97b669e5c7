"""LocalSgd: local updates of a DistributedOptimizer of Keras, on any backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import keras
import numpy as np

from sirtaki import basics, errors
from sirtaki._local_sgd import MAXIMUM, MEAN, VARIANCE, Buffer, LocalSgdBase, Outcome
from sirtaki._numpy import NumpyAdapter, numpy_ops
from sirtaki.keras._backend import ModelArrays, Reducer, backend
from sirtaki.local_updates import LocalUpdates
from sirtaki.objects import broadcast_object
from sirtaki.ops import Description, ReduceOp
from sirtaki.process_sets import global_process_set

_describe = NumpyAdapter().describe
_ONE = (1.0, 1.0)
#: Optimizers that derive weights from their state; some versions of Keras lack one.
_WEIGHTS_FROM_STATE = tuple(
    getattr(keras.optimizers, name) for name in ("Ftrl", "ScheduleFreeAdamW") if hasattr(keras.optimizers, name)
)
_MEANS, _VARIANCES = "moving_mean", "moving_variance"


class LocalSgd(LocalSgdBase):
    """Local updates of one optimizer; see LocalUpdates. Used from one thread at a time."""

    def __init__(self, optimizer: Any, reducer: Reducer, config: LocalUpdates, codec: str | None) -> None:
        moments = not isinstance(optimizer, keras.optimizers.SGD)
        super().__init__(f"{reducer.name}.local", config, codec, moments)
        self._optimizer: Any = ref(optimizer)
        self._reducer = reducer
        self._models: list[Any] = []
        #: Rank whose parameters all ranks start with.
        self.root_rank = 0
        #: Loss of this step: a number or a tensor.
        self.loss: Any = None
        #: Parameters and buffers, and the state of the optimizer for the parameters.
        self.model: ModelArrays | None = None
        self.state: ModelArrays | None = None
        self._count = 0  # number of parameters

    # ---- what the optimizer calls ----

    def buffers_of(self, model: Any) -> None:
        """Adds the variables of a model that are not trained to the merged ones. Call it before the first step."""
        if any(known is model for known in self._models):
            return
        if self.model is None:
            self._models.append(model)
        elif self._find_buffers([model], {id(v) for v in self.model.variables}):
            raise RuntimeError("buffers_of() after the first step, which fixes the merged variables; call it before")

    def prepare(self) -> bool:
        """Returns True if after_step() must be called. Called before a step, or while it is traced."""
        if self.starts and self.model is None:
            trained = list(self._optimizer()._trainable_variables)
            _refuse_dtypes(trained)
            others = self._find_buffers(self._models, {id(v) for v in trained})
            model, state = backend.memory([*trained, *others]), backend.memory(_state_of(self._optimizer()))
            self._count, self.model, self.state = len(trained), model, state
        return self.model is not None and not self._closed

    def after_step(self, lr: float, count: int, loss: float | None, waited_ns: int) -> None:
        """Reports that the optimizer got gradients `count` times, some of which it only accumulates. Collective.

        The first step starts local updates: some models have no variables before it.
        """
        optimizer = self._optimizer()
        if optimizer is None or self._closed:
            return
        every = optimizer.gradient_accumulation_steps
        if every and count % every != 0:
            return
        if self.starts:
            self._start()
            return
        if loss is not None:
            self.report_loss(loss)
        self._step(lr, waited_ns, self._pull)

    @contextmanager
    def synchronous(self) -> Iterator[None]:
        """Returns a context in which every step averages gradients. Collective at both ends."""
        if self.starts and not (self._optimizer().built and self.prepare()):
            raise RuntimeError(
                "synchronous() before the optimizer has variables, while gradients are averaged anyway; call it later"
            )
        with super().synchronous():
            yield

    @contextmanager
    def global_model(self) -> Iterator[None]:
        """Returns a context in which parameters are those that all ranks last agreed on. Not collective."""
        if self._local is None or not self._reducer.alone:
            # Gradients are averaged, so the parameters are those of all ranks.
            yield
            return
        assert self.model is not None
        self._pull()
        arrays = self.model.arrays
        own = [array.copy() for array in arrays]
        try:
            for index, array in enumerate(arrays[: self._count]):
                if array.size > 0:
                    self._local.anchor(index, array.ctypes.data, array.size)
            self._push()
            yield
        finally:
            for array, kept in zip(arrays, own, strict=True):
                array[...] = kept
            self._push()

    # ---- inside ----

    def _begin(self, local: Any) -> Outcome | None:
        """Broadcasts the parameters first: no callback can have broadcast a model that was built in this step."""
        assert self.model is not None
        work = [
            numpy_ops.broadcast(array, self.root_rank, f"{self._name}.{i}", in_place=True)
            for i, array in enumerate(self.model.arrays[: self._count])
        ]
        for handle in numpy_ops.start(work):
            handle.wait()
        self._push()
        return super()._begin(local)

    def _find_buffers(self, models: list[Any], known: set[int]) -> list[Any]:
        found = []
        for model in models if self._config.buffers == "average" else ():
            for variable in model.non_trainable_weights:
                if id(variable) not in known and str(variable.dtype) in ("float32", "float64", "int64"):
                    known.add(id(variable))
                    found.append(variable)
        return found

    def _described(self) -> list[tuple[str, Description]]:
        assert self.model is not None
        variables = zip(self.model.variables, self.model.arrays, strict=True)
        return [
            (f"{getattr(variable, 'path', variable.name)}.{i}", _describe(array))
            for i, (variable, array) in enumerate(variables)
        ]

    def _parameters(self) -> list[tuple[str, Description]]:
        assert self.model is not None
        return self._described()[: self._count]

    def _buffers(self) -> list[Buffer]:
        assert self.model is not None
        out: list[Buffer] = []
        places: dict[str, int] = {}
        variables = self.model.variables[self._count :]
        for place, (variable, (name, memory)) in enumerate(
            zip(variables, self._described()[self._count :], strict=True)
        ):
            path = str(variable.path)
            places[path] = place
            mean = places.get(path.removesuffix(_VARIANCES) + _MEANS, -1) if path.endswith(_VARIANCES) else -1
            whole = str(variable.dtype) == "int64"
            out.append((name, memory, VARIANCE if mean >= 0 else MAXIMUM if whole else MEAN, mean))
        return out

    def _pull(self) -> None:
        assert self.model is not None
        self.model.pull()

    def _push(self) -> None:
        assert self.model is not None
        self.model.push()

    def _average_gradients(self, wanted: bool) -> None:
        self._reducer.alone = not wanted

    def _receive_state(self, donor: int, mine_is_void: bool) -> None:
        assert self.state is not None
        gives = basics.rank() == donor
        if gives:
            self.state.pull()
        arrays = broadcast_object(self.state.arrays if gives else None, donor, f"{self._name}.state")
        if mine_is_void:
            self._set_state(arrays)

    def _reset_state(self) -> None:
        """Resets directions and keeps magnitudes, which Keras corrects by its count of steps."""
        assert self.state is not None
        self.state.pull()
        scales = zip(self.state.arrays, map(_is_magnitude, self.state.variables), self._first_values(), strict=True)
        self._set_state([_finite(array, first) if is_magnitude else first for array, is_magnitude, first in scales])

    def _first_values(self) -> list[float]:
        """Returns the values that a new optimizer has in its state."""
        assert self.state is not None
        first = float(getattr(self._optimizer(), "initial_accumulator_value", 0.0))
        return [
            first if str(v.name).endswith("accumulator") and _is_magnitude(v) else 0.0 for v in self.state.variables
        ]

    def _set_state(self, values: list[Any]) -> None:
        assert self.state is not None
        for array, value in zip(self.state.arrays, values, strict=True):
            array[...] = value
        self.state.push()

    def _largest(self, value: float) -> float:
        work = numpy_ops.allreduce(np.array([value]), f"{self._name}.largest", ReduceOp.MAX, _ONE, in_place=True)
        return float(numpy_ops.start_one(work).wait()[0])

    def _average_state(self) -> None:
        """Averages the state over the ranks, each array over the ranks on which it is finite. Collective."""
        assert self.state is not None
        self.state.pull()
        arrays = self.state.arrays
        if not arrays:
            return
        finite = [bool(np.isfinite(array).all()) for array in arrays]
        known = numpy_ops.allreduce(
            np.array(finite, np.float32), f"{self._name}.known", ReduceOp.SUM, _ONE, in_place=True
        )
        ranks = numpy_ops.start_one(known).wait().tolist()
        for array, is_finite in zip(arrays, finite, strict=True):
            if not is_finite:
                array[...] = 0.0
        names = [f"{self._name}.average.{i}" for i in range(len(arrays))]
        work = [
            numpy_ops.allreduce(array, name, ReduceOp.AVERAGE, _ONE, in_place=True)
            for array, name in zip(arrays, names, strict=True)
        ]
        for handle in numpy_ops.start(work):
            handle.wait()
        for array, of, first in zip(arrays, ranks, self._first_values(), strict=True):
            if of == 0:
                array[...] = first
            elif of < basics.size():
                np.multiply(array, basics.size() / of, out=array)
        self.state.push()


#: Suffixes of optimizer variables that hold magnitudes of gradients, not directions.
_MAGNITUDE_SUFFIXES = ("velocity", "velocity_hat", "accumulator", "accumulated_grad", "accumulated_delta_var", "norm")


def _is_magnitude(variable: Any) -> bool:
    name = str(variable.name)
    return name.endswith(_MAGNITUDE_SUFFIXES) and not name.endswith("gradient_accumulator")


def _finite(array: Any, first: float) -> Any:
    """Returns the array with its largest finite number in place of numbers that are not finite."""
    known = np.isfinite(array)
    return np.where(known, array, array[known].max() if known.any() else first)


def _refuse_dtypes(variables: list[Any]) -> None:
    for variable in variables:
        dtype = getattr(variable.dtype, "name", variable.dtype)
        if dtype != "float32":
            raise errors.UnsupportedError(
                f"local updates merge float32 parameters, and {variable.name} is {dtype}; use local_updates=None, or a "
                "policy such as mixed_bfloat16, which keeps variables in float32"
            )


def _state_of(optimizer: Any) -> list[Any]:
    """Returns the state of the parameters: no counts, rates or products of factors, equal on all ranks."""
    others = {id(optimizer._iterations), id(optimizer._learning_rate)}
    scalars = any(len(v.shape) == 0 for v in optimizer._trainable_variables)
    known = [v for v in optimizer.variables if id(v) not in others and "float" in str(v.dtype)]
    return [v for v in known if scalars or len(v.shape) > 0]


def check_local(optimizer: Any, scales_loss: bool, choices: Any) -> None:
    """Refuses optimizers and options that local updates do not support. Raises UnsupportedError."""
    if basics.is_elastic():
        raise errors.UnsupportedError(
            "the elastic states of TensorFlow and Keras take the weights of rank 0 after the loss of a rank, which "
            "throws away the local updates of all others; use local_updates=None in jobs with elastic.min, or PyTorch"
        )
    if scales_loss:
        raise errors.UnsupportedError(
            "local updates do not support a LossScaleOptimizer, which skips steps of one rank alone; use the policy "
            "mixed_bfloat16, or local_updates=None"
        )
    if choices.op != ReduceOp.AVERAGE:
        raise errors.UnsupportedError(
            f"local updates average models, which does not match op={choices.op.name}; use op=Average"
        )
    if choices.process_set != global_process_set:
        raise errors.UnsupportedError("local updates are made by all ranks; give no process_set")
    if isinstance(optimizer, _WEIGHTS_FROM_STATE):
        raise errors.UnsupportedError(
            f"{type(optimizer).__name__} derives weights from its state, and local updates change weights without it; "
            "use another optimizer, or local_updates=None"
        )
    if optimizer.use_ema:
        raise errors.UnsupportedError(
            "use_ema keeps an average of the weights of one rank, which local updates change without it; leave it out"
        )
