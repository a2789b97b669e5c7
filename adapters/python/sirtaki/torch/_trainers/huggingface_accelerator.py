"""accelerate_prepared() for programs with Hugging Face Accelerate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from sirtaki.errors import require
from sirtaki.local_updates import LocalChoice
from sirtaki.torch._ddp.wrapped import find_wrapper
from sirtaki.torch._trainers.library import import_library
from sirtaki.torch.compression import Choice
from sirtaki.torch.ddp import Acceleration, accelerate

_Accelerator = import_library("accelerate", "accelerate", 1, "sirtaki.huggingface").Accelerator


def accelerate_prepared(
    accelerator: Any,
    model: nn.Module,
    optimizer: Any = None,
    *,
    compression: Choice | None = None,
    local_updates: LocalChoice = None,
) -> Acceleration:
    """Calls sirtaki.torch.ddp.accelerate() for results of Accelerator.prepare(). Call it before the first backward.

    save_state() of the Accelerator then prepares checkpoints; load_state() after this call takes them. Collective.

    Args:
        accelerator: the Accelerator.
        model: the model that prepare() returned.
        optimizer: the optimizer that prepare() returned, or a list of several.
        compression: a choice of accelerate().
        local_updates: the same.

    Raises:
        InvalidArgumentError: the model is not prepared, or an argument is wrong.
    """
    require(
        isinstance(accelerator, _Accelerator),
        "accelerate_prepared() takes the Accelerator first: accelerate_prepared(accelerator, model, optimizer)",
    )
    require(
        accelerator.num_processes == 1 or find_wrapper(model) is not None,
        "the model is not wrapped yet: call model, optimizer = accelerator.prepare(model, optimizer) before "
        "accelerate_prepared()",
    )
    several: Any = optimizer if isinstance(optimizer, Sequence) else [] if optimizer is None else [optimizer]
    plain = [getattr(one, "optimizer", one) for one in several]
    handle = accelerate(model, plain, compression=compression, local_updates=local_updates)

    def before_saving(models: Any, weights: Any, folder: Any) -> None:
        del models, weights, folder  # `weights` has the tensors of the model, which change in place
        handle.prepare_checkpoint()

    accelerator.register_save_state_pre_hook(before_saving)
    return handle
