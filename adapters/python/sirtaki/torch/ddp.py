"""Compression, plans and local updates for DistributedDataParallel, over any process group.

```python
from sirtaki.torch.ddp import accelerate

model = DistributedDataParallel(model)
accelerate(model, optimizer)
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from sirtaki import basics
from sirtaki.errors import InvalidArgumentError, UnsupportedError, require
from sirtaki.local_updates import LocalChoice, local_choice
from sirtaki.process_sets import global_process_set
from sirtaki.torch._ddp.bucket_reducer import BucketReducer
from sirtaki.torch._ddp.copies import is_copy
from sirtaki.torch._ddp.handle import Acceleration
from sirtaki.torch._ddp.loaded_states import loaded_states
from sirtaki.torch._ddp.optimizer_part import OptimizerPart, divide
from sirtaki.torch._ddp.small_buckets import make_small_buckets
from sirtaki.torch._ddp.texts import (
    DISTRIBUTED_TWICE,
    SEVERAL_MODELS,
    TWO_HOOKS,
    shared_param_text,
    without_optimizer_text,
)
from sirtaki.torch._ddp.wrapped import find_wrapper, named_params, process_set_of, timeout_of
from sirtaki.torch._optimizer.local_sgd import check_local
from sirtaki.torch._optimizer.options import default_choice, fit_options, make_options, refuse_in_elastic_job
from sirtaki.torch._optimizer_class import DistributedMarker
from sirtaki.torch.compression import Choice
from sirtaki.torch.distributed.meeting import join_default_group
from sirtaki.torch.functions import broadcast_parameters
from sirtaki.torch.ops import Average
from sirtaki.torch.optimizer import DistributedOptimizer, extend_optimizer

__all__ = ["Acceleration", "accelerate"]


def accelerate(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    compression: Choice | None = None,
    local_updates: LocalChoice = None,
) -> Acceleration:
    """Makes the runtime combine the gradients of a DistributedDataParallel. Call it before the first backward.

    The model keeps its process group, of any backend, for everything but gradients. Its buckets become small, unless
    `bucket_cap_mb` was given. Gradient accumulation, clipping and schedulers work as before. Collective: all ranks do
    the same. It opens the session unless init() was called.

    Args:
        model: a DistributedDataParallel, compiled or not. A plain model is trained as with DistributedOptimizer, from
            the parameters of rank 0, and needs `optimizer`.
        optimizer: the optimizer of the model, or a list of several, changed in place: they gain the methods of
            DistributedOptimizer for compression, local updates and checkpoints. Without it, "auto" assumes an optimizer
            that is no SGD. Several models may have one optimizer, without local updates; its checkpoints have the
            residuals of the first.
        compression: a choice as in DistributedOptimizer, except compressors of the program. With None, the options
            compression.* decide if they are set, else it is "auto". "none" sends gradients as they are.
        local_updates: a choice as in DistributedOptimizer; needs `optimizer`. With None, the option local.updates
            decides.

    Returns:
        A handle with compression_report(), report_loss(), drain(), synchronous(), global_model(), local_stats(),
        exposed_seconds, state_dict(), load_state_dict() and remove().

    Raises:
        InvalidArgumentError: an argument is wrong, or the model has a communication hook already.
        UnsupportedError: the model is sharded; local updates do not support the optimizer or the model.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    wrapper = find_wrapper(model)
    optimizers = [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    for one in optimizers:
        require(isinstance(one, Optimizer), f"expected a torch.optim.Optimizer, not {type(one).__name__}")
        require(not isinstance(one, DistributedMarker) or has_part(one), DISTRIBUTED_TWICE)
    if distributed.is_available() and distributed.is_initialized():
        join_default_group()
    else:
        basics.init()
    chosen = default_choice() if compression is None else compression
    if wrapper is None:
        return _without_wrapper(model, optimizers, chosen, local_updates)
    return _attach(wrapper, optimizers, chosen, local_updates)


def _without_wrapper(
    model: nn.Module, optimizers: Sequence[Optimizer], compression: Choice, local_updates: LocalChoice
) -> Acceleration:
    require(
        len(optimizers) == 1,
        "a model without DistributedDataParallel needs the optimizer: accelerate(model, optimizer)",
    )
    broadcast_parameters(model.state_dict(), root_rank=0)
    names = getattr(model, "_orig_mod", model).named_parameters()
    made = DistributedOptimizer(optimizers[0], names, compression=compression, local_updates=local_updates)
    return Acceleration(made._sirtaki, [made])


def has_part(optimizer: Any) -> bool:
    """Returns True for the optimizer of an accelerated model."""
    return isinstance(optimizer, DistributedMarker) and isinstance(getattr(optimizer, "_sirtaki", None), OptimizerPart)


def _is_shared(optimizer: Any, params: Sequence[Tensor]) -> bool:
    """Returns True for the optimizer of another accelerated model, and False if its part is taken by this one."""
    if not has_part(optimizer) or optimizer._sirtaki.reducer.closed:
        return False
    ours = {id(p) for p in params}
    return not any(id(p) in ours for p in optimizer._sirtaki.params)


def _attach(
    wrapper: Any, optimizers: Sequence[Optimizer], compression: Choice, local_updates: LocalChoice
) -> Acceleration:
    require(not wrapper._comm_hooks or is_copy(wrapper), TWO_HOOKS)
    names, params = named_params(wrapper)
    options = make_options(Average, compression, 1.0, "backward", False, process_set_of(wrapper))
    require(
        options.compressor is None,
        "accelerate() takes compression of the runtime; a compressor of your own is a communication hook of "
        "DistributedDataParallel (register_comm_hook), or goes to DistributedOptimizer",
    )
    local = local_choice(local_updates, basics.option("local.updates"))
    refuse_in_elastic_job(local is not None, "local updates under DDP have no elastic state", "DistributedOptimizer")
    if local is not None:
        require(bool(optimizers), "local updates need the optimizer: accelerate(model, optimizer, ...)")
        if options.process_set != global_process_set:
            raise UnsupportedError("local updates of a DistributedDataParallel are made by all ranks of the job")
    kinds = {type(one) for one in optimizers}
    options, correction = fit_options(optimizers[0] if len(kinds) == 1 else None, options, local)
    own = [one for one in optimizers if not _is_shared(one, params)]
    if local is not None or correction is not None:
        _check_several(params, optimizers, own, correction)
    if local is not None:
        _check_disjoint(names, params, own)
        for one in own:
            check_local(one, params, options)
    make_small_buckets(wrapper)
    reducer = BucketReducer(wrapper, names, params, options, timeout_of(wrapper))
    _register(wrapper, reducer)
    reducer.start()
    pairs = divide(reducer, own)
    every = {param: name for name, param in wrapper.module.named_parameters()}
    for one, part in pairs:
        extend_optimizer(one, part, every, correction, local)
        loaded_states.give_to(one)
    if local is not None:
        reducer.guard_steps()
    handle = Acceleration(reducer, [one for one, _ in pairs])
    if not pairs:
        reducer.follow(handle)
    return handle


def _check_several(params: list[Tensor], optimizers: Sequence[Optimizer], own: Sequence[Any], correction: Any) -> None:
    """Refuses optimizers whose step cannot be changed for one model. Raises UnsupportedError."""
    ours = {id(p) for p in params}
    groups = [group for one in optimizers for group in one.param_groups]
    others = [p for group in groups for p in group["params"] if p.requires_grad and id(p) not in ours]
    if others or len(own) < len(optimizers) or (correction is not None and len(own) > 1):
        raise UnsupportedError(SEVERAL_MODELS)


def _check_disjoint(names: Sequence[str], params: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
    """Requires one optimizer for each parameter. Raises UnsupportedError."""
    held = [{id(p) for group in one.param_groups for p in group["params"]} for one in optimizers]
    counts = [sum(id(p) in ids for ids in held) for p in params]
    if 0 in counts:
        missing = [name for name, count in zip(names, counts, strict=True) if count == 0]
        raise UnsupportedError(without_optimizer_text(missing))
    if max(counts) > 1:
        raise UnsupportedError(shared_param_text(names[counts.index(max(counts))]))


def _register(wrapper: Any, reducer: BucketReducer) -> None:
    try:
        wrapper.register_comm_hook(reducer, _hook)
    except RuntimeError as error:
        wrapper._comm_hooks.pop()
        raise InvalidArgumentError(TWO_HOOKS) from error


def _hook(reducer, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  (torch compares annotations, which are text here)
    return reducer.hook(bucket)
