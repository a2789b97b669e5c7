# ruff: noqa: PLR0917  (Horovod's arguments)
"""DistributedOptimizer: any Keras optimizer, with gradients combined over all ranks before they are applied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any
from weakref import finalize

import keras

from sirtaki import basics, errors
from sirtaki._rank_local_variables import RankLocalVariables, trainable_weights_of
from sirtaki.compression import Choice, NoneCompressor, choice_of, kind_of, option_text
from sirtaki.errors import require
from sirtaki.keras._backend import Reducer, backend
from sirtaki.keras._local_sgd import LocalSgd, check_local
from sirtaki.local_updates import LocalChoice, LocalUpdates, local_choice
from sirtaki.ops import ReduceOp
from sirtaki.process_sets import ProcessSet, global_process_set

_WRAPPED = (
    "the DistributedOptimizer is inside a LossScaleOptimizer, which skips steps on single ranks, and the others would "
    "wait for ever: set the policy mixed_float16 before DistributedOptimizer(), or give model.fit() the callback "
    "BroadcastGlobalVariablesCallback"
)

_SUMS = "backward_passes_per_step with mixed_float16 applies means: pass average_aggregated_gradients=True"


class _Distributed:
    """Methods that DistributedOptimizer adds to the class of the user's optimizer; documented there."""

    _sirtaki: _DistributedState

    def build(self, variables: Any) -> Any:
        """Makes the variables as Keras does."""
        built = super().build(variables)  # type: ignore[misc]
        self._sirtaki.watch(list(variables))
        return built

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Combines gradients (collective), then applies them."""
        if backend.in_branch() and not self._sirtaki.scales_loss:
            raise errors.UnsupportedError(_WRAPPED)
        grads = list(grads)
        known = getattr(self, "_trainable_variables", [])
        variables = list(known if trainable_variables is None else trainable_variables)
        if len(grads) != len(variables):
            return super().apply(grads, trainable_variables)  # type: ignore[misc]  # which says what is wrong
        state = self._sirtaki
        local = state.local
        if variables and not self.built:  # type: ignore[attr-defined]
            # Built as apply() of Keras does it, but before gradients are combined.
            with keras.name_scope(self.name, caller=self):  # type: ignore[attr-defined]
                self.build(variables)
        steps_locally = local is not None and local.prepare()
        if getattr(self, "gradient_accumulation_steps", None):
            # Combined together with the last of the accumulated gradients.
            state.pending = [v for v, g in zip(variables, grads, strict=True) if g is not None]
        else:
            grads = state.reduce(grads, variables)
        result = super().apply(grads, variables)  # type: ignore[misc]
        state.reducer.applied()
        if steps_locally:
            backend.after_step(self, state.reducer, local)
        return result

    def scale_loss(self, loss: Any) -> Any:
        """Scales the loss as Keras does; model.fit() passes the loss of a step here."""
        self.report_loss(loss)
        return super().scale_loss(loss)  # type: ignore[misc]

    def finalize_variable_values(self, var_list: Any) -> None:
        """Finalizes as Keras does at the end of model.fit(), then drains local updates."""
        super().finalize_variable_values(var_list)  # type: ignore[misc]
        self.drain()

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of a variable local, so that it is not combined. Call it before the first step.

        All ranks register the same variables. The gradient is divided by the number of ranks unless
        scale_local_gradients=False.

        Raises:
            UnsupportedError: with local_updates.
        """
        state = self._sirtaki
        if state.config is not None:
            raise errors.UnsupportedError("register_local_var() with local_updates: all variables are merged there")
        state.own.add(var)
        if self.built:  # type: ignore[attr-defined]
            state.watch(list(self._trainable_variables))  # type: ignore[attr-defined]

    def report_loss(self, loss: Any) -> None:
        """With local_updates: reports the loss of this rank before apply(). model.fit() does it."""
        if self._sirtaki.local is not None:
            self._sirtaki.local.loss = loss

    def buffers_of(self, model: Any) -> None:
        """With local_updates: merges variables of `model` that are not trained (of BatchNorm, say) with the weights.

        Call it before the first step; BroadcastGlobalVariablesCallback does it.

        Raises:
            RuntimeError: after the first step.
        """
        if self._sirtaki.local is not None:
            self._sirtaki.local.buffers_of(model)

    def drain(self) -> None:
        """With local_updates: makes weights and buffers equal on all ranks. Collective, outside of tf.function.

        Call it before a checkpoint, before an evaluation and at the end. model.fit() does it at its end, and
        BroadcastGlobalVariablesCallback before validation and after each epoch.
        """
        if self._sirtaki.local is not None:
            self._sirtaki.local.drain()

    @contextmanager
    def synchronous(self) -> Iterator[None]:
        """With local_updates: returns a context in which every step averages gradients. Collective at both ends."""
        if self._sirtaki.local is None:
            yield
            return
        with self._sirtaki.local.synchronous():
            yield

    @contextmanager
    def global_model(self) -> Iterator[None]:
        """With local_updates: returns a context in which weights are those that all ranks last agreed on.

        Not collective. Any rank may evaluate inside, and no rank may step. The weights of the rank return afterwards.
        """
        if self._sirtaki.local is None:
            yield
            return
        with self._sirtaki.local.global_model():
            yield

    def local_stats(self) -> dict[str, Any]:
        """Returns interval, delay, mode, reason, rounds, waits, bytes, divergence, alarms; {} without local_updates."""
        return {} if self._sirtaki.local is None else self._sirtaki.local.stats()

    def _clip_gradients(self, grads: Any) -> Any:
        state = self._sirtaki
        if getattr(self, "gradient_accumulation_steps", None) and state.pending:
            require(len(grads) == len(state.pending), "gradients and variables of an accumulated step differ")
            grads = state.reduce(list(grads), state.pending)
            if state.factor != 1:
                grads = [grad * state.factor for grad in grads]
        return super()._clip_gradients(grads)  # type: ignore[misc]


class _DistributedState:
    """State of a DistributedOptimizer beside that of the plain optimizer."""

    def __init__(
        self, choices: Any, factor: int, scales_loss: bool, own: RankLocalVariables, config: LocalUpdates | None = None
    ) -> None:
        self.choices = choices
        self.config = config
        self.own = own  # variables whose gradients stay on their rank
        self.reducer: Reducer = backend.reducer(choices, config is not None)
        self.local: LocalSgd | None = None
        self.factor = factor  # divisor that Keras has applied to accumulated gradients
        self.scales_loss = scales_loss
        self.pending: list[Any] = []

    def watch(self, variables: list[Any]) -> None:
        """Announces the variables whose gradients reduce() will get."""
        self.reducer.watch([variable for variable in variables if variable not in self.own])

    def reduce(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        """Returns the combined gradients, and those of local variables, divided if asked for. Collective."""
        if not self.own:
            return self.reducer.reduce(grads, variables)
        return self.own.reduce(self.reducer.reduce, grads, variables, backend.group_size(self.choices))


def _make_distributed(optimizer: Any, state: _DistributedState) -> Any:
    """Changes the class of the optimizer to a subclass of the same name, so that saved models name the plain class."""
    plain = type(optimizer)
    kept = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    # Set in __dict__, past the attribute tracking of Keras.
    optimizer.__dict__["_sirtaki"] = state
    optimizer.__class__ = type(plain.__name__, (_Distributed, plain), kept)
    if state.config is not None:
        codec, own = state.choices.codec, state.choices.compressor
        codec = option_text() if codec is None and own is None else codec
        state.local = LocalSgd(optimizer, state.reducer, state.config, codec)
        finalize(optimizer, state.local.close).atexit = False
    if optimizer.built:
        state.watch(list(optimizer._trainable_variables))
    return optimizer


def _make_plain(optimizer: Any) -> Any:
    """Makes the optimizer a plain one again and returns its state."""
    state = optimizer.__dict__.pop("_sirtaki")
    optimizer.__class__ = type(optimizer).__mro__[2]
    return state


def is_distributed(optimizer: Any) -> bool:
    """Returns True if this optimizer combines gradients."""
    return isinstance(optimizer, _Distributed)


def set_initial_rank(optimizer: Any, root_rank: int) -> None:
    """With local updates: makes a model that is built in its first step start with the weights of this rank."""
    if optimizer._sirtaki.local is not None:
        optimizer._sirtaki.local.root_rank = root_rank


def move_outside_loss_scale(optimizer: Any) -> None:
    """Moves the reduction from a DistributedOptimizer to the LossScaleOptimizer that Keras has put around it."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None and is_distributed(inner) and not is_distributed(optimizer):
        if inner._sirtaki.factor != 1:
            raise errors.UnsupportedError(_SUMS)
        if inner._sirtaki.config is not None:
            check_local(inner, True, inner._sirtaki.choices)
        state = _make_plain(inner)
        _make_distributed(optimizer, _DistributedState(state.choices, 1, True, state.own))


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Choice = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = ReduceOp.AVERAGE,
    num_groups: int = 0,
    groups: Any = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    local_updates: LocalChoice = None,
) -> Any:
    """Makes a Keras optimizer combine gradients over all ranks before it applies them; for model.fit and own loops.

    The optimizer is changed in place and returned. It is saved as the plain optimizer, so models load without Sirtaki.
    Under the policy mixed_float16 the result is a LossScaleOptimizer around it, so that all ranks skip the same steps.

    Args:
        optimizer: a keras.optimizers.Optimizer.
        name: accepted as in Horovod; not used.
        device_dense: accepted as in Horovod; not used.
        device_sparse: accepted as in Horovod; not used.
        compression: compression of gradients; see sirtaki.compression.
        sparse_as_dense: converts gradients of embeddings to dense ones first, instead of gathering their rows.
        gradient_predivide_factor: with Average: splits the division, by this factor before the sum, the rest
            afterwards.
        op: Average, Sum, Min, Max or Product; the last three without compression.
        num_groups: accepted as in Horovod; not used.
        groups: accepted as in Horovod; not used.
        backward_passes_per_step: number of batches whose gradients are accumulated before they are combined, like
            gradient_accumulation_steps of Keras.
        average_aggregated_gradients: applies their mean, as Keras does; False: their sum.
        process_set: the ranks that take part; all by default.
        scale_local_gradients: divides gradients of local variables (register_local_var()) by the number of ranks.
        local_updates: local SGD: ranks make several steps of their own between merges of their models. "auto", a number
            of steps, another policy, a function, or a LocalUpdates. 1: none. With None, the option local.updates
            decides. The first step begins with the weights of rank 0, or of the root rank of
            BroadcastGlobalVariablesCallback. See docs/local_updates.md, drain() and local_stats().

    Returns:
        `optimizer`, or the LossScaleOptimizer around it.

    Raises:
        ValueError: an argument is wrong, or the optimizer is distributed already.
        UnsupportedError: with local_updates, for op other than Average, process_set, use_ema, scaled losses, and
            optimizers that derive weights from their state.
    """
    del name, device_dense, device_sparse, num_groups, groups
    known = isinstance(optimizer, keras.optimizers.Optimizer)
    require(known, f"expected a keras.optimizers.Optimizer, not {type(optimizer).__name__}")
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    require(
        not is_distributed(optimizer) and not is_distributed(inner), "the optimizer is a DistributedOptimizer already"
    )
    passes = backward_passes_per_step
    whole = isinstance(passes, Integral) and not isinstance(passes, bool) and passes >= 1
    require(whole, f"backward_passes_per_step is {passes!r}; it must be an integer from 1 on")
    config = local_choice(local_updates, basics.option("local.updates"))
    if config is not None and choice_of(compression) == (None, None):
        compression = config.gradient_compression(None, option_text()) or compression
    choices = backend.choose(
        compression=compression,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        optimizer=kind_of(inner, keras.optimizers),
    )
    if passes > 1:
        set_already = getattr(inner, "gradient_accumulation_steps", None)
        require(not set_already, "the optimizer has gradient_accumulation_steps; leave out backward_passes_per_step")
        require(not inner.built, "backward_passes_per_step for an optimizer that has been used; give it a new one")
        inner.gradient_accumulation_steps = int(passes)
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not scaled and keras.config.dtype_policy().name == "mixed_float16":
        optimizer, scaled = keras.optimizers.LossScaleOptimizer(optimizer), True
    if scaled and passes > 1 and not average_aggregated_gradients:
        raise errors.UnsupportedError(_SUMS)
    if config is not None:
        check_local(inner, scaled, choices)
    factor = 1 if average_aggregated_gradients else int(passes)
    return _make_distributed(
        optimizer, _DistributedState(choices, factor, scaled, RankLocalVariables(scale_local_gradients), config)
    )


def PartialDistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Choice = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = ReduceOp.AVERAGE,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes a DistributedOptimizer() that does not combine the gradients of some layers.

    Args:
        optimizer: a keras.optimizers.Optimizer.
        name: accepted as in Horovod; not used.
        device_dense: accepted as in Horovod; not used.
        device_sparse: accepted as in Horovod; not used.
        compression: see DistributedOptimizer().
        sparse_as_dense: see DistributedOptimizer().
        gradient_predivide_factor: see DistributedOptimizer().
        op: see DistributedOptimizer().
        groups: accepted as in Horovod; not used.
        process_set: see DistributedOptimizer().
        local_layers: a layer of Keras, or several, with existing weights; the same on all ranks.
        scale_local_gradients: see DistributedOptimizer().

    Raises:
        ValueError: an argument is wrong.
        UnsupportedError: see DistributedOptimizer() and register_local_var().
    """
    del name, device_dense, device_sparse, groups
    local = trainable_weights_of(local_layers)
    distributed = DistributedOptimizer(
        optimizer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in local:
        distributed.register_local_var(variable)
    return distributed
