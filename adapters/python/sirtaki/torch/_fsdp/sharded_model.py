"""Reads a model that fully_shard() has sharded: its shards, and the ranks that hold replicas of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from sirtaki import basics, errors
from sirtaki.errors import require
from sirtaki.process_sets import ProcessSet
from sirtaki.torch._fsdp.texts import (
    HSDP,
    NO_MESH,
    NOT_SHARDED,
    ON_META,
    OTHER_FSDP,
    TWO_DIMS,
    elsewhere_text,
    not_in_mesh_text,
    old_torch_text,
    other_mesh_text,
    plain_param_text,
    replicate_dim_text,
    several_meshes_text,
    without_optimizer_text,
)
from sirtaki.torch._optimizer.shards import Shard, local_of


def check_torch() -> None:
    """Refuses a torch without fully_shard(). Raises UnsupportedError."""
    from torch.distributed import fsdp

    if not hasattr(fsdp, "fully_shard"):
        raise errors.UnsupportedError(old_torch_text(torch.__version__))


@dataclass(frozen=True)
class ShardedModel:
    """A model as accelerate() sees it."""

    #: Names and shards of the parameters that need gradients, without empty shards.
    names: list[str]
    shards: list[Tensor]
    #: Parameters that need gradients and have no element on this rank.
    empty: list[Tensor]
    #: Names of all parameters, by parameter.
    every: dict[Tensor, str]
    #: Ranks with the same shards, this one among them.
    replicas: ProcessSet


def read_model(model: nn.Module, optimizer: Optimizer, mesh: Any) -> ShardedModel:
    """Returns the shards of a model and the ranks of their replicas. Sends nothing.

    Raises:
        InvalidArgumentError: the model is not sharded, or not over a dimension of the mesh; the optimizer lacks a
            parameter.
        UnsupportedError: the model is sharded in another way.
    """
    require(isinstance(mesh, DeviceMesh), NO_MESH)
    require(mesh.ndim == 2, TWO_DIMS)
    model = getattr(model, "_orig_mod", model)
    require(isinstance(model, nn.Module), f"accelerate() takes a model, not a {type(model).__name__}")
    kinds = {cls.__name__ for part in model.modules() for cls in type(part).__mro__}
    if "FullyShardedDataParallel" in kinds:
        raise errors.UnsupportedError(OTHER_FSDP)
    require("FSDPModule" in kinds, NOT_SHARDED)
    every = {param: name for name, param in model.named_parameters()}
    trained = [(name, param) for param, name in every.items() if param.requires_grad]
    plain = [name for name, param in trained if local_of(param) is param]
    require(not plain, plain_param_text(plain))
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, param in trained if id(param) not in held]
    require(not missing, without_optimizer_text(missing))
    replicas = _replicas(mesh, [param for param in every if local_of(param) is not param])
    require(not any(param.is_meta for param in every), ON_META)
    filled = [(name, param) for name, param in trained if local_of(param).numel() > 0]
    empty = [param for _, param in trained if local_of(param).numel() == 0]
    return ShardedModel([n for n, _ in filled], [Shard.of(p) for _, p in filled], empty, every, replicas)


def _replicas(mesh: DeviceMesh, params: list[Any]) -> ProcessSet:
    meshes = {tuple(p.device_mesh.mesh.flatten().tolist()): p.device_mesh for p in params}
    used = next(iter(meshes.values()))
    names = mesh.mesh_dim_names or ()
    if any(m.ndim > 1 and set(m.mesh_dim_names or ()) <= set(names) for m in meshes.values()):
        raise errors.UnsupportedError(HSDP)
    if any(m.ndim > 1 for m in meshes.values()):
        dims = next(m.mesh_dim_names or m.ndim for m in meshes.values() if m.ndim > 1)
        raise errors.UnsupportedError(other_mesh_text(dims))
    require(len(meshes) == 1, several_meshes_text(sorted(map(list, meshes))))
    place = mesh.get_coordinate()
    if place is None:
        raise errors.InvalidArgumentError(not_in_mesh_text(mesh.mesh.flatten().tolist()))
    ranks = used.mesh.flatten().tolist()
    # The ranks along each dimension that have this rank among them.
    lines = [mesh.mesh[:, place[1]].tolist(), mesh.mesh[place[0], :].tolist()]
    preferred = [dim for dim in (1, 0) if lines[dim] == ranks]
    require(bool(preferred), elsewhere_text(ranks, lines))
    dim = next((d for d in preferred if names and names[d] in (used.mesh_dim_names or ())), preferred[0])
    require(not names or "repl" not in names[dim], replicate_dim_text(names))
    replicas = sorted(lines[1 - dim])
    return ProcessSet(None if len(replicas) == basics.size() else replicas)
