"""Error texts of sirtaki.torch.fsdp; each names the fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sirtaki import basics
from sirtaki._unsupported import old_library_text

_MESH = 'init_device_mesh(device, (replicas, shards), mesh_dim_names=("replicate", "shard"))'
NO_MESH = f"accelerate() needs the DeviceMesh of the job, with replicas and shards: mesh = {_MESH}"
TWO_DIMS = f"the mesh of accelerate() has two dimensions, of replicas and of shards: mesh = {_MESH}"
NOT_SHARDED = (
    'the model is not sharded: call fully_shard(model, mesh=mesh["shard"]) before accelerate(), or use '
    "sirtaki.torch.ddp.accelerate() for a model that every rank has as a whole"
)
OTHER_FSDP = (
    "the model is sharded by FullyShardedDataParallel, which accelerate() does not support: shard it by "
    'fully_shard(model, mesh=mesh["shard"])'
)
HSDP = (
    "fully_shard() got the whole mesh, so FSDP averages gradients over the replicas itself, uncompressed: give it the "
    'dimension of the shards alone, fully_shard(model, mesh=mesh["shard"])'
)
ON_META = (
    "the model is on the meta device: give its shards memory and values before accelerate() (model.to_empty() and its "
    "initialization, or a checkpoint)"
)
PASSES = (
    "accelerate() takes compression of the runtime, and this is a compressor of your own: name a codec, as in "
    'compression="int8"'
)
TWICE = "the optimizer is a DistributedOptimizer, or was given to accelerate() before: give it the plain optimizer"


def old_torch_text(version: str) -> str:
    """Returns the text for a torch without fully_shard()."""
    return old_library_text("sirtaki.torch.fsdp", "torch", "2.6", version)


def not_in_mesh_text(ranks: Sequence[int]) -> str:
    """Returns the text for a mesh without this rank."""
    return f"the mesh has ranks {list(ranks)}, and rank {basics.rank()} is none of them: give accelerate() its own mesh"


def other_mesh_text(dims: Any) -> str:
    """Returns the text for parameters that are divided along several dimensions."""
    return (
        f"parameters are divided over a mesh with dimensions {dims}: accelerate() supports shards by fully_shard() "
        "over one dimension, without tensor, expert or context parallelism"
    )


def several_meshes_text(ranks: Sequence[Sequence[int]]) -> str:
    """Returns the text for parameters on several meshes."""
    return f"parameters are sharded over different ranks, {ranks}: shard the whole model over one dimension of the mesh"


def elsewhere_text(ranks: Sequence[int], lines: Sequence[Sequence[int]]) -> str:
    """Returns the text for a model that is sharded over no dimension of the mesh."""
    return (
        f"the model is sharded over ranks {list(ranks)}, and the dimensions of this mesh have {lines[0]} and {lines[1]}"
        ': use one mesh for both, fully_shard(model, mesh=mesh["shard"]) and accelerate(model, optimizer, mesh)'
    )


def replicate_dim_text(names: Sequence[str]) -> str:
    """Returns the text for a model that is sharded over the dimension of the replicas."""
    shards = next((name for name in names if "repl" not in name), "shard")
    return f'the model is sharded over the dimension of the replicas: use fully_shard(model, mesh=mesh["{shards}"])'


def plain_param_text(names: Sequence[str]) -> str:
    """Returns the text for parameters that are not sharded, whose gradients nobody combines."""
    return (
        f"{', '.join(names[:3])} ({len(names)} in all) requires a gradient and is not sharded, so no rank combines its "
        "gradients: call fully_shard() for the root module, too, or freeze the parameter"
    )


def without_optimizer_text(names: Sequence[str]) -> str:
    """Returns the text for parameters that the optimizer lacks."""
    return (
        f"{', '.join(names[:3])} ({len(names)} in all) requires a gradient and is not in the optimizer: make the "
        "optimizer after fully_shard(), with all parameters that need gradients, or freeze the others"
    )
