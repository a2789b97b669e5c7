"""Compression, plans and local updates between the replicas of a model that fully_shard() has sharded (FSDP2).

```python
from sirtaki.torch.fsdp import accelerate

mesh = init_device_mesh("cpu", (hosts, ranks_of_a_host), mesh_dim_names=("replicate", "shard"))
fully_shard(model, mesh=mesh["shard"])
accelerate(model, optimizer, mesh)
```
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from sirtaki import basics
from sirtaki.errors import require
from sirtaki.local_updates import LocalChoice, local_choice
from sirtaki.torch._ddp.handle import Acceleration
from sirtaki.torch._fsdp.sharded_model import ShardedModel, check_torch, read_model
from sirtaki.torch._fsdp.texts import PASSES, TWICE
from sirtaki.torch._optimizer.local_sgd import check_local
from sirtaki.torch._optimizer.options import (
    ReducerOptions,
    default_choice,
    fit_options,
    make_options,
    refuse_in_elastic_job,
)
from sirtaki.torch._optimizer.reducer import GradientReducer
from sirtaki.torch._optimizer.shards import local_of
from sirtaki.torch._optimizer_class import DistributedMarker
from sirtaki.torch.compression import Choice
from sirtaki.torch.distributed.meeting import join_default_group
from sirtaki.torch.functions import broadcast_parameters
from sirtaki.torch.ops import Average
from sirtaki.torch.optimizer import extend_optimizer

__all__ = ["Acceleration", "accelerate"]


def accelerate(
    model: nn.Module,
    optimizer: Optimizer,
    mesh: DeviceMesh,
    *,
    compression: Choice | None = None,
    local_updates: LocalChoice = None,
) -> Acceleration:
    """Makes the runtime combine the gradients of shards over replicas. Call it before the first backward.

    FSDP combines gradients over the ranks of `mesh["shard"]`; then each rank averages its shards with the ranks that
    hold the same ones, along the other dimension of the mesh. Replicas begin with the parameters and buffers of the
    first one. Accumulation, clipping and schedulers work as with FSDP alone. Collective: all ranks do the same. It
    opens the session unless init() was called.

    Args:
        model: a model after fully_shard(model, mesh=mesh["shard"]), compiled or not, with memory and values.
        optimizer: the optimizer of all parameters that need gradients, changed in place: it gains the methods of
            DistributedOptimizer for compression, local updates and checkpoints.
        mesh: the mesh of the job, with a dimension of replicas and one of shards.
        compression: a choice as in DistributedOptimizer, except compressors of the program. With None, the options
            compression.* decide if they are set, else it is "auto". "none" sends gradients as they are.
        local_updates: a choice as in DistributedOptimizer. Each rank makes local updates of its shards with their
            replicas. With None, the option local.updates decides.

    Returns:
        A handle with compression_report(), report_loss(), drain(), synchronous(), global_model(), local_stats(),
        exposed_seconds, state_dict(), load_state_dict() and remove().

    Raises:
        InvalidArgumentError: the model is not sharded over a dimension of the mesh, or an argument is wrong.
        UnsupportedError: the model is sharded in another way, torch is too old, or local updates do not support the
            optimizer or the model.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    check_torch()
    require(isinstance(optimizer, Optimizer), f"expected a torch.optim.Optimizer, not {type(optimizer).__name__}")
    require(not isinstance(optimizer, DistributedMarker), TWICE)
    join_default_group()
    sharded = read_model(model, optimizer, mesh)
    chosen = default_choice() if compression is None else compression
    options = make_options(Average, chosen, 1.0, "backward", False, sharded.replicas)
    require(options.compressor is None, PASSES)
    local = local_choice(local_updates, basics.option("local.updates"))
    refuse_in_elastic_job(local is not None, "local updates under FSDP have no elastic state", "DistributedOptimizer")
    options, correction = fit_options(optimizer, options, local)
    if local is not None:
        check_local(optimizer, sharded.shards, options)
    _equalize(model, sharded)
    reducer = ShardReducer(sharded, options)
    extend_optimizer(optimizer, reducer, sharded.every, correction, local)
    return Acceleration(reducer, [optimizer])


def _equalize(model: nn.Module, sharded: ShardedModel) -> None:
    """Makes parameters and buffers those of the first replica. Collective."""
    if sharded.replicas.size() == 1:
        return
    held = {name: local_of(param).detach() for param, name in sharded.every.items()}
    held.update(model.named_buffers())
    filled = {name: tensor for name, tensor in held.items() if tensor.numel() > 0}
    broadcast_parameters(filled, sharded.replicas.ranks[0], sharded.replicas)


class ShardReducer(GradientReducer):
    """Combines the gradients of the shards of this rank."""

    def __init__(self, sharded: ShardedModel, options: ReducerOptions) -> None:
        super().__init__(sharded.names, sharded.shards, options)
        # Their gradients have no elements, so they are always combined.
        self._known.update(id(param) for param in sharded.empty)
