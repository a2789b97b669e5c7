"""OptimizerPart: the parameters of one optimizer among those of a model, with the methods of GradientReducer.

Gradients are combined when backward() returns, so most methods have nothing to do. Each part has its own residuals and
local updates, so that the checkpoint of each optimizer has its own part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from sirtaki import errors
from sirtaki.errors import require
from sirtaki.torch._ddp.bucket_reducer import BucketReducer
from sirtaki.torch._ddp.texts import JOIN_WITH_LOCAL, NOT_COMBINED
from sirtaki.torch._optimizer.options import ReducerOptions
from sirtaki.torch._optimizer.residuals import ResidualStore

_PARTS = "parts"


class OptimizerPart:
    """Some parameters of a model, for one optimizer or for none. Used from the thread that steps."""

    def __init__(self, reducer: BucketReducer, number: int, params: Sequence[Tensor]) -> None:
        """Makes part `number` of the model, with those of `params` that the reducer combines."""
        mine = {id(p) for p in params}
        self._reducer = reducer
        self.indices = [i for i, p in enumerate(reducer.params) if id(p) in mine]
        self.names = [reducer.names[i] for i in self.indices]
        self.params = [reducer.params[i] for i in self.indices]
        name = reducer.stream_name if number == 0 else f"{reducer.stream_name}.{number}"
        self.options: ReducerOptions = replace(reducer.options, stream_name=name)
        self.residuals = ResidualStore(self.names, self.params, self.options)
        #: LocalSgd of the optimizer, or None.
        self.local: Any = None
        #: The program has called synchronize() itself.
        self.synchronized_by_program = False
        self._alone = False
        self._voids = 0  # skipped steps that the optimizer has made
        self._backwards = 0  # backward passes of the model before the last step

    @property
    def reducer(self) -> BucketReducer:
        """Reducer of the model."""
        return self._reducer

    @property
    def stream_name(self) -> str:
        """Name of the stream, with the number of the part; the same on all ranks."""
        return self.options.stream_name

    @property
    def exposed_seconds(self) -> float:
        """Seconds in which this rank has waited for gradients of the model."""
        return self._reducer.exposed_seconds

    def momentum_corrected(self) -> set[int]:
        """Returns ids of the parameters whose results are steps of SGD with momentum."""
        return self._reducer.momentum_corrected()

    @property
    def alone(self) -> bool:
        """True while this rank makes steps by itself; gradients are still combined if another part needs that."""
        return self._alone

    @alone.setter
    def alone(self, alone: bool) -> None:
        self._alone = alone
        self._reducer.follow_parts()

    @property
    def in_flight(self) -> bool:
        """False: backward() returns with combined gradients."""
        return False

    @property
    def reduced(self) -> bool:
        """True; see in_flight."""
        return True

    @property
    def void(self) -> bool:
        """False: a loss is an error here."""
        return False

    def synchronize(self) -> None:
        """Makes gradients ready for the optimizer; waits for nothing."""
        self.synchronized_by_program = False
        if self.options.size == 1 or self._reducer.is_off():
            self.residuals.add_to_gradients()
        if self._voids != self._reducer.voids:
            # Without gradients an optimizer changes nothing.
            self._voids = self._reducer.voids
            for param in self.params:
                param.grad = None

    def stepped(self) -> None:
        """Called after the optimizer has applied the gradients."""
        self._reducer.stepped()

    def skips(self, error: BaseException) -> bool:
        """Returns True if the option compression.nonfinite skips a step with this error, on all ranks."""
        return self._reducer.skips(error)

    def mean_loss(self, loss: Any) -> Any:
        """Returns the mean over the ranks of the loss of a closure. Collective."""
        return self._reducer.mean_loss(loss)

    def check_step(self, groups: Sequence[dict[str, Any]]) -> None:
        """Refuses a step that ranks cannot make together. Raises an error."""
        del groups
        self._reducer.check_use()
        model = self._reducer.model
        if self.local is not None and model is not None and model._join_config.enable:
            raise errors.UnsupportedError(JOIN_WITH_LOCAL)
        combined, self._backwards = self._reducer.backwards != self._backwards, self._reducer.backwards
        has_gradients = any(p.grad is not None for p in self.params)
        if self.local is not None and not self._alone and has_gradients and not combined:
            raise RuntimeError(NOT_COMBINED)

    def check_zero_grad(self) -> None:
        """Called before zero_grad(): aborts a backward that failed half-way."""
        self._reducer.give_up_backward()

    def check_between_steps(self, what: str) -> None:
        """Does nothing: no gradients are in flight outside backward()."""

    def check_add(self) -> None:
        """Does nothing; see add()."""

    def add(self, name: str, param: Tensor) -> None:
        """Does nothing: DistributedDataParallel combines the gradients of the model that it was made with."""

    @property
    def passes_per_step(self) -> int:
        """Returns 1."""
        return 1

    @passes_per_step.setter
    def passes_per_step(self, passes: int) -> None:
        if passes != 1:
            self.set_no_sync(True)

    def set_no_sync(self, entered: bool) -> None:
        """Refused. Raises UnsupportedError."""
        if entered:
            raise errors.UnsupportedError(
                "DistributedDataParallel accumulates gradients inside no_sync() of the model; use that instead"
            )

    def optimizer_gone(self) -> None:
        """Called when nobody uses the optimizer: at other times on each rank, so the reducer stays as it is."""
        if self.local is not None:
            self.local.close()
            self.local = None


class PartResiduals:
    """Residuals of all parts of a model, with the methods of ResidualStore that a stream and a handle use."""

    def __init__(self, parts: Sequence[OptimizerPart]) -> None:
        self._parts = parts

    @property
    def steps(self) -> int:
        """Steps of the training so far."""
        return max(part.residuals.steps for part in self._parts)

    @steps.setter
    def steps(self, steps: int) -> None:
        for part in self._parts:
            part.residuals.steps = steps

    @property
    def has_loaded_state(self) -> bool:
        """True if a loaded checkpoint has not been given to the runtime yet."""
        return any(part.residuals.has_loaded_state for part in self._parts)

    def stream_opened(self, stream: Any, slots: list[int], shared: bool) -> None:
        """Called when the stream is open, before any gradient. Collective if `shared`: a rank has loaded a state."""
        for part in self._parts:
            part.residuals.stream_opened(stream, [slots[i] for i in part.indices], shared)

    def stream_closed(self) -> None:
        """Called when the stream is closed, with its residuals."""
        for part in self._parts:
            part.residuals.stream_closed()

    def report(self) -> list[dict[str, Any]]:
        """Returns a row for each tensor of the stream; [] before the first step. Not collective."""
        return [row for part in self._parts for row in part.residuals.report()]

    def report_loss(self, loss: float) -> None:
        """Reports the loss of this rank; no effect before the first step."""
        self._parts[0].residuals.report_loss(loss)

    def state(self) -> dict[str, Any] | None:
        """Returns the state of the only part, or those of all; None if there are none. Not collective."""
        states = [part.residuals.state() for part in self._parts]
        if len(states) == 1:
            return states[0]
        return {_PARTS: states} if any(state is not None for state in states) else None

    def gather_for_state(self) -> None:
        """Lets state() return the sums of the residuals of all ranks until the next step. Collective."""
        for part in self._parts:
            part.residuals.gather_for_state()

    def load(self, state: dict[str, Any] | None) -> None:
        """Loads a result of state() with as many parts. Not collective. Raises InvalidArgumentError for another."""
        count = len(self._parts)
        states = [state] if count == 1 else [None] * count if state is None else state.get(_PARTS, ())
        require(len(states) == count, f"the checkpoint has residuals of another number of optimizers than {count}")
        for part, one in zip(self._parts, states, strict=True):
            part.residuals.load(one)


def divide(reducer: BucketReducer, optimizers: Sequence[Any]) -> list[tuple[Any, OptimizerPart]]:
    """Divides a model among its optimizers; returns those that got a part, because they have parameters of it.

    Parameters of no optimizer are a part, too.
    """
    rest = {id(p): p for p in reducer.params}
    pairs: list[tuple[Any, OptimizerPart]] = []
    for optimizer in optimizers:
        params = [p for group in optimizer.param_groups for p in group["params"] if id(p) in rest]
        if params:
            pairs.append((optimizer, OptimizerPart(reducer, len(pairs), params)))
        for p in params:
            rest.pop(id(p), None)
    parts = [part for _, part in pairs]
    if rest:
        parts.append(OptimizerPart(reducer, len(parts), list(rest.values())))
    reducer.use_parts(parts, PartResiduals(parts))
    return pairs
