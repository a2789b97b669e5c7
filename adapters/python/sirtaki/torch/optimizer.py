"""DistributedOptimizer: any torch optimizer, with gradients combined over all ranks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sirtaki import basics, errors
from sirtaki._end_report import Training, follow
from sirtaki.compression import option_text
from sirtaki.errors import require
from sirtaki.local_updates import LocalChoice, LocalUpdates, local_choice
from sirtaki.ops import ReduceOp, check_reduce_op
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.torch._adapter import torch_ops
from sirtaki.torch._optimizer.adasum import compressor_of, make_adasum, refuse_for_adasum
from sirtaki.torch._optimizer.checkpoints import CheckpointMethods, only_makes_state
from sirtaki.torch._optimizer.deferred_updates import DeferredUpdates, check_optimizer, updates_per_parameter
from sirtaki.torch._optimizer.local_sgd import LocalSgd, check_local
from sirtaki.torch._optimizer.momentum_correction import MomentumCorrection
from sirtaki.torch._optimizer.options import checked_passes, fit_options, make_options
from sirtaki.torch._optimizer.parameters import named_params
from sirtaki.torch._optimizer.reducer import GradientReducer
from sirtaki.torch._optimizer.step import after_update, before_update, refuse_grad_scaler, unhooked_step
from sirtaki.torch._optimizer.step_errors import SCALER_SKIPS, SCALER_TOO_EARLY
from sirtaki.torch._optimizer_class import (
    DistributedMarker,
    extend_class,
    own_methods,
    plain_class,
    rebind_scheduler_step,
    user_methods,
)
from sirtaki.torch.compression import Choice, Compression
from sirtaki.torch.ops import Adasum, Average


class _VoidStep(Exception):  # noqa: N818  (not an error)
    """Leaves step() of the user's optimizer before it has changed anything. Its argument is the loss."""


class _Distributed:
    """Methods that DistributedOptimizer adds to the class of the user's optimizer; documented there."""

    #: Named as in Horovod.
    _parameter_names: dict[Tensor, str]
    _sirtaki: GradientReducer
    _sirtaki_owner: int  # id of the object that closes the reducer
    _sirtaki_skip: bool
    _sirtaki_committed: bool
    _sirtaki_per_parameter: bool  # the class of the user's optimizer updates each parameter independently
    _sirtaki_updates: DeferredUpdates | None  # only with sync="forward"
    _sirtaki_local: LocalSgd | None  # only with local_updates
    _sirtaki_update: Callable[[Any], Any] | None  # only with momentum correction: replaces the plain step()
    _sirtaki_training: Training

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Combines gradients that are not combined yet (collective), then applies them.

        With sync="forward" it returns at once, and the parameters of a module are updated at the next call of the
        module.

        Args:
            closure: computes the loss and runs backward, as for LBFGS; its gradients are combined, too. An optimizer
                whose step depends on the loss, such as LBFGS with a line search, gets the mean over the ranks (a tensor
                or a number, collective), and so does the program.

        Returns:
            The loss that the closure returned; None without a closure.

        Raises:
            RuntimeError: a parameter has a gradient that is not combined, or the step of a backward that failed.
            HorovodInternalError: ranks disagree, or one is lost.
        """
        if only_makes_state():
            return user_methods(self).step()
        self._sirtaki.check_step(self.param_groups)  # type: ignore[attr-defined]
        local = self._sirtaki_local
        if local is None:
            result = self._sirtaki_step(closure)
            self._sirtaki_training.stepped()
            return result
        refuse_grad_scaler(SCALER_SKIPS)
        local.check_step(closure)
        if local.starts and not self._sirtaki_skip:
            # A rank without a backward pass must take part in the gradients of the others first.
            self._sirtaki.synchronize()
        local.before_step()
        self._sirtaki_step(None)
        local.after_step()
        self._sirtaki_training.stepped()
        return None

    def _sirtaki_step(self, closure: Callable[[], Any] | None) -> Any:
        reducer = self._sirtaki
        if self._sirtaki_updates is not None:
            if closure is not None:
                raise errors.UnsupportedError('sync="forward" cannot run a closure; use sync="backward"')
            self._sirtaki_updates.step(self._sirtaki_skip)
            return None
        result = None
        if closure is not None:
            try:
                if self._sirtaki_update is None:
                    result = user_methods(self).step(self._combining(closure))
                else:
                    # SGD runs its closure once, before anything else, so the closure can run here.
                    result = self._combining(closure)()
                    self._sirtaki_apply()
            except _VoidStep as void:
                (result,) = void.args
        else:
            if self._sirtaki_skip:
                if reducer.in_flight:
                    raise RuntimeError("step() inside skip_synchronize() needs a synchronize() before it")
            else:
                if reducer.in_flight:
                    refuse_grad_scaler(SCALER_TOO_EARLY)
                if reducer.reduced and reducer.synchronized_by_program:
                    warnings.warn(
                        "step() after synchronize() without skip_synchronize(); the gradients are not combined again",
                        stacklevel=2,
                    )
                reducer.synchronize()
            result = None if reducer.void else self._sirtaki_apply()
        self._sirtaki_committed = not reducer.void
        reducer.stepped()
        return result

    def _sirtaki_apply(self) -> Any:
        """Applies the gradients as they are, by the step of the user's optimizer."""
        if self._sirtaki_update is None:
            return user_methods(self).step()
        before_update(self)
        self._sirtaki_update(self)
        after_update(self)
        return None

    def _combining(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def combined() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._sirtaki.synchronize()
            if self._sirtaki.void and decides:
                raise errors.RanksChangedError(
                    "a rank was lost in a step whose optimizer may call its closure several times (LBFGS, or a class "
                    "that is not one of torch's); such a step cannot be left out, so train inside of elastic.run()"
                )
            if self._sirtaki.void:
                # Other optimizers call the closure once, before they change anything.
                raise _VoidStep(loss)
            return self._sirtaki.mean_loss(loss) if decides else loss

        # With local losses the ranks would decide differently, and call the closure a different number of times.
        decides = not self._sirtaki_per_parameter
        return combined

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients as torch does.

        With sync="forward", gradients that are not applied yet are cleared as soon as they are.

        Raises:
            RuntimeError: gradients are in flight (between backward and step, unless sync="backward").
        """
        self._sirtaki.check_zero_grad()
        if self._sirtaki_updates is not None and self._sirtaki_updates.pending:
            self._sirtaki_updates.zero_grad(set_to_none)
            return
        user_methods(self).zero_grad(set_to_none)

    def wait(self) -> None:
        """Returns when all parameters are updated; matters with sync="forward" only. Not collective.

        Call it between step() and the next forward pass before reading gradients, the optimizer's state, or parameters
        from a list of your own. A read of a parameter as an attribute of its module or from parameters() makes its
        update; state_dict() and copies of a module make all updates.
        """
        if self._sirtaki_updates is not None:
            self._sirtaki_updates.finish_updates()

    def synchronize(self) -> None:
        """Returns when `.grad` of every parameter is combined. Call it before clipping, for example, then step().

        After step() with sync="forward" it does the same as wait().
        """
        if self._sirtaki_updates is not None and self._sirtaki_updates.pending and not self._sirtaki.in_flight:
            self._sirtaki_updates.finish_updates()
            return
        self._sirtaki.synchronize()
        self._sirtaki.synchronized_by_program = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Returns a context in which step() does not combine gradients; for step() after synchronize()."""
        self._sirtaki_skip = True
        try:
            yield
        finally:
            self._sirtaki_skip = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Returns a context in which backward accumulates on this rank alone; enter and leave it on all ranks alike."""
        self._sirtaki.set_no_sync(True)
        try:
            yield
        finally:
            self._sirtaki.set_no_sync(False)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes accumulated before gradients are combined. Call it between steps."""
        self._sirtaki.passes_per_step = checked_passes(passes)

    @property
    def committed(self) -> bool:
        """False if the last step() changed nothing, since a rank was lost in it; the same on all ranks."""
        return self._sirtaki_committed

    @property
    def exposed_seconds(self) -> float:
        """Seconds since the start in which this rank only waited for gradients or merges."""
        local = self._sirtaki_local
        return self._sirtaki.exposed_seconds + (0.0 if local is None else local.exposed_seconds)

    def compression_report(self) -> list[dict[str, Any]]:
        """Returns a row for each tensor, with its codec from the next step on; [] before the first step.

        A row has name, numel, dtype, codec, recipe (the kind of reduction), params, density (part of the elements that
        is sent), momentum (that the codec corrects; 0 for none), reason, held_bytes (of its elements), wire_bytes
        (bytes sent in a step, as the size of an allreduce), ratio of these two, and owed_norm (norm of the residual).
        """
        return self._sirtaki.residuals.report()

    def report_loss(self, loss: float | Tensor) -> None:
        """Reports the loss of this rank for compression="importance:split=loss": ranks with larger losses send more.

        Call it on every rank, each step or now and then: until every rank has reported one, all send the same amount.
        Not collective; no effect before the first step.

        Args:
            loss: a number, or a tensor of one loss or of one for each sample, whose mean counts.
        """
        number = float(loss.detach().mean()) if isinstance(loss, Tensor) else float(loss)
        self._sirtaki.residuals.report_loss(number)
        if self._sirtaki_local is not None:
            self._sirtaki_local.report_loss(number)

    def drain(self) -> None:
        """With local_updates: makes parameters and buffers equal on all ranks. Collective.

        Call it before a checkpoint, before an evaluation and at the end. It finishes merges in flight and makes one
        more.
        """
        if self._sirtaki_local is not None:
            self._sirtaki.check_between_steps("drain()")
            self._sirtaki_local.drain()

    @contextmanager
    def synchronous(self) -> Iterator[None]:
        """With local_updates: returns a context in which every step averages gradients. Collective at both ends."""
        if self._sirtaki_local is None:
            yield
            return
        self._sirtaki.check_between_steps("synchronous()")
        with self._sirtaki_local.synchronous():
            yield

    @contextmanager
    def global_model(self) -> Iterator[None]:
        """With local_updates: returns a context in which parameters are those that all ranks last agreed on.

        Not collective. Any rank may evaluate inside, and no rank may step. The parameters of the rank return
        afterwards.
        """
        if self._sirtaki_local is None:
            yield
            return
        self._sirtaki.check_between_steps("global_model()")
        with self._sirtaki_local.global_model():
            yield

    def local_stats(self) -> dict[str, Any]:
        """Returns interval, delay, mode, reason, rounds, waits, bytes, divergence, alarms; {} without local_updates."""
        return {} if self._sirtaki_local is None else self._sirtaki_local.stats()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses copies: they would share the parameters, or combine nothing."""
        del protocol
        raise errors.UnsupportedError(
            "a DistributedOptimizer cannot be copied or pickled; save its state_dict(), make another optimizer of the "
            "same class, load the state into it and give it to DistributedOptimizer"
        )

    def __del__(self) -> None:
        # Trainers copy the attributes of this object into objects of derived classes, which must not close it.
        if not sys.is_finalizing() and vars(self).get("_sirtaki_owner") == id(self):
            _close(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch does; the new parameters are combined from the next step on. All ranks do the same.

        Raises:
            RuntimeError: between backward() and step().
            UnsupportedError: with local_updates.
        """
        self._sirtaki.check_add()
        if self._sirtaki_local is not None:
            raise errors.UnsupportedError("local updates have one set of parameters; make another optimizer for more")
        self.wait()
        known = {id(p) for group in self.param_groups for p in group["params"]}  # type: ignore[attr-defined]
        user_methods(self).add_param_group(param_group)
        number = len(self.param_groups) - 1  # type: ignore[attr-defined]
        for i, param in enumerate(self.param_groups[-1]["params"]):  # type: ignore[attr-defined]
            name = f"group.{number}.{i}"
            self._parameter_names.setdefault(param, name)
            if id(param) not in known and param.requires_grad:
                self._sirtaki.add(name, param)
                if self._sirtaki_updates is not None:
                    self._sirtaki_updates.add(param)


# Torch wraps step() of a class to run its hooks, unless the method is marked; the inner step() is wrapped already.
_Distributed.step.hooked = True  # type: ignore[attr-defined]


def _close(optimizer: Any) -> None:
    """Removes hooks and stream of an optimizer that nobody uses any more, once its updates are made."""
    made = vars(optimizer)
    reducer, updates, training = (made.get(f"_sirtaki{part}") for part in ("", "_updates", "_training"))

    def last() -> None:
        if training is not None:
            training.close(optimizer)
        if reducer is not None:
            reducer.optimizer_gone()

    if updates is None:
        last()
    else:
        updates.release(optimizer, last)


_METHODS = {**own_methods(CheckpointMethods), **own_methods(_Distributed)}


def extend_optimizer(
    optimizer: torch.optim.Optimizer,
    reducer: Any,
    names: dict[Tensor, str],
    correction: MomentumCorrection | None,
    local: LocalUpdates | None,
) -> None:
    """Gives `optimizer`, in place, the methods of DistributedOptimizer over a reducer.

    Args:
        optimizer: the optimizer of the program; it may have had another reducer, which is closed.
        reducer: a GradientReducer, or a reducer with its methods.
        names: names of the parameters.
        correction: momentum correction; None: the codec corrects none.
        local: local updates; None: none.
    """
    plain, options = plain_class(optimizer), reducer.options
    if not isinstance(optimizer, DistributedMarker):
        extend_class(optimizer, _METHODS)
    update = None
    if correction is not None:
        correction.momentum_corrected = reducer.momentum_corrected
        update = correction.wrap(unhooked_step(plain))
    training = None
    if local is not None:
        codec = option_text() if options.codec is None and options.compressor is None else options.codec
        training = reducer.local = LocalSgd(optimizer, reducer, local, codec)
    attributes = {
        "_parameter_names": names,
        "_sirtaki": reducer,
        "_sirtaki_owner": id(optimizer),
        "_sirtaki_skip": False,
        "_sirtaki_committed": True,
        "_sirtaki_per_parameter": updates_per_parameter(plain),
        "_sirtaki_update": update,
        "_sirtaki_updates": DeferredUpdates(optimizer, plain, reducer, update) if options.sync == "forward" else None,
        "_sirtaki_local": training,
        "_sirtaki_training": vars(optimizer).get("_sirtaki_training") or follow(optimizer),
    }
    vars(optimizer).update(attributes)
    rebind_scheduler_step(optimizer)


def DistributedOptimizer(  # noqa: N802, PLR0917  (Horovod's name and signature)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Choice = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    sync: str | None = None,
    local_updates: LocalChoice = None,
) -> Any:
    """Makes `optimizer` combine gradients over all ranks. Call init() first, and do the same on all ranks.

    The same object is returned, with a subclass of its class, so schedulers, isinstance() and checkpoints keep working.
    It gains committed, wait(), synchronize(), skip_synchronize(), no_sync(), set_backward_passes_per_step(),
    exposed_seconds, and the methods of compression and local updates; with op=Adasum only the first six.

    A parameter unused on some ranks counts as zeros there; one unused on all keeps `.grad is None`. A parameter belongs
    to the optimizer made last. Its shape and dtype must stay those of the first step.

    Args:
        optimizer: any torch optimizer, changed in place.
        named_parameters: model.named_parameters(); the names appear in errors and in the trace.
        compression: one of Compression, with settings as Compression.group_topk(rate=0.01), or its text; a dict of
            these by pattern of parameter names; or a class or object with compress() and decompress(), as in Horovod,
            applied to each gradient. Compression.none leaves the choice to the option compression.codec, "none" turns
            compression off. See docs/compression.md.
        backward_passes_per_step: number of backward passes that are accumulated before gradients are combined.
        op: Average, Sum or Adasum. With Adasum every rank makes its own step, and the changes of each parameter are
            combined (see allreduce()): compression is none, fp16, bf16 or one of your own, gradients stay those of the
            rank, and sync, local_updates and gradient_predivide_factor are refused.
        gradient_predivide_factor: splits the division of the average: by this factor before the sum, the rest
            afterwards.
        num_groups: accepted as in Horovod; the runtime plans fusion.
        groups: accepted as in Horovod; the runtime plans fusion.
        sparse_as_dense: converts sparse gradients to dense ones before they are sent; otherwise they are gathered.
        process_set: the ranks whose gradients are combined; all by default. On a rank outside the set the optimizer
            works alone. All ranks of the set make its optimizers in the same order.
        sync: "backward": gradients are combined when backward() returns, so clipping and GradScaler work unchanged.
            "step": step() waits for them, as in Horovod. "forward": step() returns at once, and the parameters of a
            module are updated when the module is called or they are read next, so gradients travel during the next
            forward pass, too; for optimizers that update each parameter independently, without GradScaler, clipping and
            closures. See wait(). With None, the option torch.sync decides.
        local_updates: local SGD: ranks make several steps of their own between merges of their models. "auto", a number
            of steps, another policy, a function, or a LocalUpdates. 1: none. With None, the option local.updates
            decides. Models must be equal at the first step (broadcast_parameters()). See docs/local_updates.md, drain()
            and local_stats().

    Returns:
        `optimizer`.

    Raises:
        ValueError: an argument is wrong, or init() was not called.
        UnsupportedError: with sync="forward", for optimizers that may couple parameters; with local_updates, for
            closures, parts of models (FSDP) and parameters that are not float32.
        RuntimeError: from backward(), step() or zero_grad() called in a wrong order, or for a parameter that was
            converted or has a gradient that nobody combines. The text names the parameter.
        HorovodInternalError: from backward() or step() when the ranks disagree or one is lost.
    """
    del num_groups, groups
    basics.size()
    torch_ops.within(process_set).check()
    if isinstance(optimizer, DistributedMarker):
        raise errors.InvalidArgumentError("this optimizer is distributed already")
    known = isinstance(optimizer, torch.optim.Optimizer)
    require(known, f"expected a torch.optim.Optimizer, not {type(optimizer).__name__}")
    passes = checked_passes(backward_passes_per_step)
    names, params, every = named_params(optimizer, named_parameters)
    if check_reduce_op(op) is Adasum:
        refuse_for_adasum(gradient_predivide_factor, sync, local_updates)
        make_adasum(optimizer, names, params, compressor_of(compression), process_set)
        optimizer._parameter_names = every  # type: ignore[attr-defined]
        return optimizer
    options = make_options(op, compression, gradient_predivide_factor, sync, sparse_as_dense, process_set)
    local = local_choice(local_updates, basics.option("local.updates"))
    options, correction = fit_options(optimizer, options, local)
    if local is not None:
        check_local(optimizer, params, options)
    if options.sync == "forward":
        check_optimizer(optimizer)
    reducer = GradientReducer(names, params, options)
    reducer.passes_per_step = passes
    on_cpu = all(param.device.type == "cpu" for param in params)
    reducer.outlives_losses = on_cpu and options.process_set == global_process_set
    extend_optimizer(optimizer, reducer, every, correction, local)
    return optimizer
