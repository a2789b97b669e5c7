"""sync="forward": step() returns at once, and parameters are updated when their module is called or they are read.

The user's own optimizer makes the update. Its groups are narrowed to the parameters in question, with the options of
the time of step(), so any optimizer works that updates each parameter independently. Gradients and send buffers are
kept here until the runtime is done with them, whatever the program does to `.grad`.

Used from the thread that runs forward and backward; a lock covers a second thread that runs a forward pass.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sirtaki import errors
from sirtaki.torch import _module_hooks
from sirtaki.torch._optimizer.reducer import GradientReducer
from sirtaki.torch._optimizer.step import StepBuffers, after_update, before_update, refuse_grad_scaler, unhooked_step
from sirtaki.torch._optimizer.step_errors import SCALER_TOO_EARLY

#: Optimizers of torch that update each parameter independently: all but LBFGS.
_PER_PARAMETER_OPTIMIZERS = {
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
}
_USE_BACKWARD_SYNC = 'use sync="backward"'


def check_optimizer(optimizer: Optimizer) -> None:
    """Requires an optimizer that can be applied to one layer at a time. Raises UnsupportedError for others."""
    plain = type(optimizer)
    if not updates_per_parameter(plain) and not getattr(optimizer, "forward_safe", False):
        raise errors.UnsupportedError(
            f'sync="forward" updates one layer at a time, and {plain.__name__} may couple parameters of several '
            f"layers; {_USE_BACKWARD_SYNC}. If it treats each parameter by itself, set forward_safe = True on it"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise errors.UnsupportedError(f'sync="forward" cannot differentiate through step(); {_USE_BACKWARD_SYNC}')


def updates_per_parameter(plain: type[Optimizer]) -> bool:
    """Returns True for a class of torch that updates each parameter independently, and so runs a closure once."""
    maker = _class_defining_step(plain)
    return f"{maker.__module__}.".startswith("torch.optim.") and maker.__name__ in _PER_PARAMETER_OPTIMIZERS


def _class_defining_step(plain: type[Optimizer]) -> type:
    """Returns the class that defines step(). Torch copies an inherited step(), with hooks, into derived classes."""
    step = unhooked_step(plain)
    return [c for c in plain.__mro__ if "step" in vars(c) and unhooked_step(c) is step][-1]


def _frozen(value: Any) -> Any:
    """Returns a copy of an option of a group, because schedulers change tensors in place."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, tuple) and any(isinstance(v, Tensor) for v in value):
        return tuple(_frozen(v) for v in value)
    return value


def _run_outside_forward_modes(update: Callable[[Any], Any], optimizer: Optimizer) -> None:
    """Runs `update` without the inference mode and the autocast of the forward pass, as step() would have run it."""
    inference, autocast = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    if not inference and not autocast:
        update(optimizer)
        return
    with ExitStack() as modes:
        if inference:
            modes.enter_context(torch.inference_mode(mode=False))
        if autocast:
            modes.enter_context(torch.autocast("cpu", enabled=False))
        update(optimizer)


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method that must not run while another thread uses the updates."""

    @functools.wraps(method)
    def locked(self: DeferredUpdates, *args: Any) -> Any:
        with self._lock:
            return method(self, *args)

    return locked


class DeferredUpdates:
    """Updates of one optimizer that step() has left to the next forward pass. Does not keep the optimizer alive."""

    def __init__(
        self,
        optimizer: Optimizer,
        plain: type[Optimizer],
        reducer: GradientReducer,
        update: Callable[[Any], Any] | None = None,
    ) -> None:
        self._optimizer: Callable[[], Any] = weakref.ref(optimizer)
        self._plain_zero_grad: Any = plain.zero_grad
        self._update = unhooked_step(plain) if update is None else update
        self._reducer = reducer
        self._index = {id(p): i for i, p in enumerate(reducer.params)}
        self._module_params = _module_hooks.ModuleParamMap(reducer.params)
        self._lock = RLock()
        self._before_first_step = True
        #: Pending updates: index in the reducer by id of the parameter. Read by _module_hooks.
        self.pending_by_id: dict[int, int] = {}
        self._updating: set[int] = set()  # indices whose update is running
        self._step_open = False  # the step of the runtime is not ended yet
        self._memory = StepBuffers([], [], {})
        self._groups: list[dict[str, Any]] = []  # options at the time of step()
        self._group_of: dict[int, int] = {}
        self._param_versions: list[int] = []  # versions of the parameters at the time of step()
        self._clear = ""  # pending zero_grad(): "none" or "zero"
        self._on_last_update: Callable[[], None] | None = None  # see release()
        _module_hooks.add_listener(self)
        reducer.deferred = self

    def release(self, optimizer: Optimizer, callback: Callable[[], None]) -> None:
        """Calls `callback` once the pending updates of an optimizer that was dropped are made. Never waits.

        Pending updates keep the optimizer alive. They are made when any module is called or one of the parameters is
        read.
        """
        self._reducer.unhook()
        # Weak references to the optimizer may be dead already.
        self._optimizer = lambda: optimizer
        self._on_last_update = callback
        self._end_if_done()

    @_locked
    def _end_if_done(self) -> None:
        if self._on_last_update is not None and not self.pending_by_id and not self._step_open:
            callback, self._on_last_update = self._on_last_update, None
            _module_hooks.remove_listener(self)
            self._clear_pending()
            callback()

    @property
    def pending(self) -> bool:
        """Returns True while updates are pending."""
        return bool(self.pending_by_id)

    def add(self, param: Tensor) -> None:
        """Adds the last parameter of the reducer."""
        self._index[id(param)] = len(self._index)
        self._module_params.add(param)

    # ---- step and zero_grad of the optimizer ----

    @_locked
    def step(self, skip_synchronize: bool) -> None:
        """Submits the step and leaves the updates to the next forward pass, if possible; else applies them at once."""
        optimizer = self._optimizer()
        self.finish_updates()
        self._before_first_step = False
        if self._reducer.in_flight:
            if skip_synchronize:
                raise RuntimeError("step() inside skip_synchronize() needs a synchronize() before it")
            refuse_grad_scaler(SCALER_TOO_EARLY)
        before_update(optimizer)
        memory = None if skip_synchronize else self._reducer.defer()
        if memory is None:
            _run_outside_forward_modes(self._update, optimizer)
            self._reducer.stepped()
            after_update(optimizer)
        else:
            self._begin(optimizer, memory)

    @_locked
    def zero_grad(self, set_to_none: bool) -> None:
        """Clears gradients that are applied; the others are cleared once they are."""
        optimizer = self._optimizer()
        self._clear = "none" if set_to_none else "zero"
        groups = optimizer.param_groups
        optimizer.param_groups = [
            {**group, "params": [p for p in group["params"] if id(p) not in self.pending_by_id]} for group in groups
        ]
        try:
            self._plain_zero_grad(optimizer, set_to_none)
        finally:
            optimizer.param_groups = groups

    # ---- moments at which updates are made ----

    def before_call(self, module: nn.Module) -> None:
        """Implements Listener: `module` is about to use its parameters."""
        if self._on_last_update is not None:
            self._complete_all()
            return
        if not self.pending_by_id:
            if self._before_first_step:
                self._module_params.record_call(module)
            return
        self._update_for(module)

    @_locked
    def _update_for(self, module: nn.Module) -> None:
        # In these cases modules below may be used without a call.
        opaque = not module.training and not torch.is_grad_enabled()
        if opaque or isinstance(module, torch.jit.ScriptModule) or "_orig_mod" in module._modules:
            self._module_params.record_call(module)
            ids = self._module_params.params_below(module)
        else:
            uncalled_params_below = self._module_params.uncalled_params_below(module)
            ids = [id(p) for p in module._parameters.values()]
            # A parameter without a gradient is probably unused, so this call should not wait for it.
            ids += [
                key
                for key in uncalled_params_below
                if key in self.pending_by_id and self._memory.grads[self.pending_by_id[key]] is not None
            ]
        self._complete_these(ids)

    @_locked
    def before_read(self, ids: Iterable[int]) -> None:
        """Implements Listener: the program is about to read these parameters."""
        self._complete_these(ids)

    def _complete_these(self, ids: Iterable[int]) -> None:
        # Tied weights appear several times.
        self._complete(dict.fromkeys(self.pending_by_id[key] for key in ids if key in self.pending_by_id))

    @_locked
    def before_backward(self) -> None:
        """Ends the step of the runtime, so that gradients of the next one can be submitted."""
        if self._step_open:
            self._end()
        if self.pending_by_id:
            used = self._reducer.used()
            for index in self.pending_by_id.values():
                if used[index]:
                    self._reducer.mark_stale(index)

    def finish_updates(self) -> None:
        """Waits for all gradients and makes all updates."""
        if self.pending_by_id or self._step_open:
            self._complete_all()

    @_locked
    def _complete_all(self) -> None:
        if self._step_open:
            self._end()
        self._complete(self.pending_by_id.values())
        self._end_if_done()

    # ---- one step ----

    def _begin(self, optimizer: Any, memory: StepBuffers) -> None:
        groups = optimizer.param_groups
        self._memory, self._step_open, self._clear = memory, True, ""
        self._groups = [{k: _frozen(v) for k, v in group.items() if k != "params"} for group in groups]
        self._group_of = {id(p): g for g, group in enumerate(groups) for p in group["params"]}
        self.pending_by_id = {key: index for key, index in self._index.items() if key in self._group_of}
        self._param_versions = [p._version for p in self._reducer.params]
        known_params = self._module_params.known_params()
        if not known_params.issuperset(self.pending_by_id):
            gradients = memory.grads
            now = [i for key, i in self.pending_by_id.items() if key not in known_params and gradients[i] is not None]
            self._complete(now)

    def _end(self) -> None:
        if self._guarded(self._reducer.end_deferred):
            self._step_open = False

    def _guarded(self, wait: Callable[[], None]) -> bool:
        """Calls `wait`; returns False for a skipped step. A failed step is void, an interrupted wait is not."""
        try:
            wait()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            skipped = self._reducer.skips(error)
            if skipped:
                self._skip_step()
            self._clear_pending()
            self._end_if_done()
            if not skipped:
                raise
            return False
        return True

    def _skip_step(self) -> None:
        """Clears the gradients of a step that is not applied, unless the program has new ones."""
        for param, grad in zip(self._reducer.params, self._memory.grads, strict=True):
            if grad is not None and param.grad is grad:
                param.grad = None

    def _complete(self, indices: Iterable[int]) -> None:
        indices = [i for i in indices if i not in self._updating]
        if not indices:
            return
        params = self._reducer.params
        if self._step_open and not self._guarded(lambda: self._reducer.fetch(indices)):
            return
        results = self._results(indices)
        # Pending for other threads until the update is done, but not for reads by the update itself.
        self._updating.update(indices)
        try:
            self._apply(indices, results)
        finally:
            self._updating.difference_update(indices)
            for i in indices:
                self.pending_by_id.pop(id(params[i]), None)
        if not self.pending_by_id:
            after_update(self._optimizer())
            if self._on_last_update is not None and self._step_open:
                self._end()
            self._end_if_done()

    def _results(self, indices: Sequence[int]) -> list[Tensor | None]:
        memory = self._memory
        used: list[bool] | None = None
        results: list[Tensor | None] = []
        for i in indices:
            grad, send_buffer = memory.grads[i], memory.send_buffers.get(i)
            if self._reducer.params[i]._version != self._param_versions[i]:
                self._raise_changed(i, "")
            if grad is None:
                used = self._reducer.used() if used is None else used
                results.append(send_buffer if used[i] else None)
                continue
            if grad._version != memory.versions[i]:
                self._raise_changed(i, "the gradient of ")
            if send_buffer is not None:
                grad.copy_(send_buffer)
            results.append(grad)
        return results

    def _raise_changed(self, index: int, what: str) -> None:
        self.abandon()
        raise RuntimeError(
            f"{what}{self._reducer.names[index]} was changed after step(), before its update; call wait() before such "
            f"changes, clear gradients with the optimizer's zero_grad(), or {_USE_BACKWARD_SYNC}. The updates that "
            "were still to be made are lost"
        )

    def _apply(self, indices: Sequence[int], results: Sequence[Tensor | None]) -> None:
        optimizer, memory = self._optimizer(), self._memory
        params = [self._reducer.params[i] for i in indices]
        visible_grads = [p.grad for p in params]  # the gradients that the program sees
        for p, grad in zip(params, results, strict=True):
            p.grad = grad
        try:
            self._apply_to(optimizer, params)
        finally:
            for i, p, grad, visible in zip(indices, params, results, visible_grads, strict=True):
                if visible is not memory.grads[i]:
                    p.grad = visible
                elif self._clear == "none":
                    p.grad = None
                elif self._clear == "zero" and grad is not None:
                    grad.zero_()
                memory.grads[i] = None

    def _apply_to(self, optimizer: Any, params: Sequence[Tensor]) -> None:
        by_group: dict[int, list[Tensor]] = {}
        for p in params:
            by_group.setdefault(self._group_of[id(p)], []).append(p)
        groups = optimizer.param_groups
        narrowed = [{**self._groups[g], "params": some} for g, some in by_group.items()]
        optimizer.param_groups = narrowed
        try:
            _run_outside_forward_modes(self._update, optimizer)
        finally:
            optimizer.param_groups = groups
        for g, group in zip(by_group, narrowed, strict=True):
            self._check_options(optimizer, self._groups[g], group)

    def _check_options(self, optimizer: Any, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Refuses an optimizer that writes into its groups, because it would do so once for each layer."""
        written = [key for key, value in after.items() if key != "params" and before.get(key, after) is not value]
        if written:
            self.abandon()
            raise errors.UnsupportedError(
                f"{type(optimizer).__name__} writes '{written[0]}' into its parameter groups while it updates, and "
                f'sync="forward" runs it once for each layer; {_USE_BACKWARD_SYNC}, or keep it in state[p]'
            )

    @_locked
    def abandon(self) -> None:
        """Drops the pending updates."""
        if self._step_open:
            self._end()
        self._clear_pending()

    def _clear_pending(self) -> None:
        self.pending_by_id = {}
        self._step_open = False
        self._memory = StepBuffers([], [], {})
