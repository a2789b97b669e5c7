"""Compression, plans and local updates for DistributedDataParallel, over any process group.

from sirtaki.torch.ddp import accelerate

model = DistributedDataParallel(model)
accelerate(model, optimizer)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn

from sirtaki import basics
from sirtaki.errors import InvalidArgumentError, UnsupportedError, require
from sirtaki.local_updates import LocalChoice, local_choice
from sirtaki.torch._ddp.bucket_reducer import BucketReducer
from sirtaki.torch._ddp.handle import Acceleration
from sirtaki.torch._ddp.texts import DISTRIBUTED_TWICE, SEVERAL_MODELS, TWO_HOOKS
from sirtaki.torch._ddp.wrapped import find_wrapper, named_params, process_set_of, timeout_of
from sirtaki.torch._optimizer.local_sgd import check_local
from sirtaki.torch._optimizer.options import fit_options, make_options
from sirtaki.torch._optimizer_class import DistributedMarker
from sirtaki.torch.compression import Choice, Compression
from sirtaki.torch.distributed.meeting import join_default_group
from sirtaki.torch.functions import broadcast_parameters
from sirtaki.torch.ops import Average
from sirtaki.torch.optimizer import DistributedOptimizer, extend_optimizer

__all__ = ["Acceleration", "accelerate"]


def accelerate(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    compression: Choice | None = None,
    local_updates: LocalChoice = None,
) -> Acceleration:
    """Makes the runtime combine the gradients of a DistributedDataParallel. Call it before the first backward.

    The model keeps its process group, of any backend, for everything but gradients. Gradient accumulation, clipping and
    schedulers work as before. Collective: all ranks do the same. It opens the session unless init() was called.

    Args:
        model: a DistributedDataParallel, compiled or not. A plain model is trained as with DistributedOptimizer, from
            the parameters of rank 0, and needs `optimizer`.
        optimizer: the optimizer of the model, changed in place: it gains the methods of DistributedOptimizer for
            compression, local updates and checkpoints. Without it, "auto" assumes an optimizer that is no SGD. Several
            models may have one optimizer, without local updates; its checkpoints have the residuals of the first.
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
    require(not isinstance(optimizer, DistributedMarker) or is_shared(optimizer), DISTRIBUTED_TWICE)
    known = optimizer is None or isinstance(optimizer, torch.optim.Optimizer)
    require(known, f"expected a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if distributed.is_available() and distributed.is_initialized():
        join_default_group()
    else:
        basics.init()
    chosen = _default_compression() if compression is None else compression
    if wrapper is None:
        require(
            optimizer is not None,
            "a model without DistributedDataParallel needs the optimizer: accelerate(model, optimizer)",
        )
        broadcast_parameters(model.state_dict(), root_rank=0)
        names = getattr(model, "_orig_mod", model).named_parameters()
        made = DistributedOptimizer(optimizer, names, compression=chosen, local_updates=local_updates)
        return Acceleration(made._sirtaki, made)
    return _attach(wrapper, optimizer, chosen, local_updates)


def is_shared(optimizer: Any) -> bool:
    """Returns True for the optimizer of another accelerated model."""
    return isinstance(optimizer, DistributedMarker) and isinstance(getattr(optimizer, "_sirtaki", None), BucketReducer)


def _default_compression() -> Choice:
    given = basics.option("compression.rules") or basics.option_source("compression.codec") != "default"
    return Compression.none if given else "auto"


def _attach(
    wrapper: Any, optimizer: torch.optim.Optimizer | None, compression: Choice, local_updates: LocalChoice
) -> Acceleration:
    names, params = named_params(wrapper)
    options = make_options(Average, compression, 1.0, "backward", False, process_set_of(wrapper))
    require(
        options.compressor is None,
        "accelerate() takes compression of the runtime; a compressor of your own is a communication hook of "
        "DistributedDataParallel (register_comm_hook), or goes to DistributedOptimizer",
    )
    local = local_choice(local_updates, basics.option("local.updates"))
    if local is not None:
        require(optimizer is not None, "local updates need the optimizer: accelerate(model, optimizer, ...)")
    options, correction = fit_options(optimizer, options, local)
    shared = is_shared(optimizer)
    if local is not None:
        check_local(optimizer, params, options)
    if local is not None or correction is not None:
        ours = {id(p) for p in params}
        others = [
            p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and id(p) not in ours
        ]
        if shared or others:
            raise UnsupportedError(SEVERAL_MODELS)
    reducer = BucketReducer(wrapper, names, params, options, timeout_of(wrapper))
    _register(wrapper, reducer)
    if optimizer is None or shared:
        return Acceleration(reducer, None)
    every = {param: name for name, param in wrapper.module.named_parameters()}
    extend_optimizer(optimizer, reducer, every, correction, local)
    return Acceleration(reducer, optimizer)


def _register(wrapper: Any, reducer: BucketReducer) -> None:
    try:
        wrapper.register_comm_hook(reducer, _hook)
    except RuntimeError as error:
        reducer.close()
        raise InvalidArgumentError(TWO_HOOKS) from error


def _hook(reducer, bucket):  # noqa: ANN001, ANN202  (torch compares annotations, which are text here)
    return reducer.hook(bucket)
