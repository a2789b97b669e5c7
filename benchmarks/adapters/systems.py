"""Programs of torch alone, with and without the line of Sirtaki: DDP and FSDP over Gloo. Runs inside a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.adapters.cases import ALONE, OURS, PLAIN
from benchmarks.common.systems import GlooSystem


def _local_updates(choice: Any) -> dict[str, Any]:
    """Returns the argument of accelerate(); `choice`: arguments of LocalUpdates, or None."""
    if choice is None:
        return {}
    from sirtaki.torch import LocalUpdates

    return {"local_updates": LocalUpdates(**choice)}


class DdpSystem(GlooSystem):
    """DDP on Gloo with accelerate()."""

    def train(
        self, model: Any, optimizer: Any, local_updates: Any = None, of_ddp: Mapping[str, Any] | None = None, **how: Any
    ) -> tuple[Any, Any]:
        """Wraps the model and accelerates it; `of_ddp`: arguments of DDP, `how`: arguments of accelerate()."""
        from sirtaki.torch.ddp import accelerate

        model, optimizer = super().train(model, optimizer, **(of_ddp or {}))
        accelerate(model, optimizer, **how, **_local_updates(local_updates))
        return model, optimizer


class DdpIdleHookSystem(GlooSystem):
    """DDP with a communication hook that sends nothing: what DDP itself adds to a step, whatever the hook does."""

    averages = False

    def train(self, model: Any, optimizer: Any, **how: Any) -> tuple[Any, Any]:
        """Wraps the model; gradients of this rank come back as they are."""
        from torch.futures import Future

        def at_once(bucket: Any) -> Any:
            done: Any = Future()
            done.set_result(bucket.buffer())
            return done

        model, optimizer = super().train(model, optimizer, **how)
        # DDP allows a hook no other annotations than its own.
        model.register_comm_hook(None, lambda _, bucket: at_once(bucket))
        return model, optimizer


class FsdpSystem(GlooSystem):
    """FSDP2 on Gloo. Ranks of a host share a model; hosts are replicas of each other."""

    def train(
        self, model: Any, optimizer: Any, shards: int = 1, replicas: str = PLAIN, local_updates: Any = None, **how: Any
    ) -> tuple[Any, Any]:
        """Shards the model, for a new optimizer of the same kind.

        `replicas`: FSDP averages gradients over them (HSDP), accelerate() does with `how`, or nobody does.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        names = ("replicate", "shard")
        mesh = init_device_mesh("cpu", (self._dist.get_world_size() // shards, shards), mesh_dim_names=names)
        # The root keeps no whole parameters after a forward pass, so that model.parameters() are always the shards.
        fully_shard(model, mesh=mesh if replicas == PLAIN else mesh["shard"], reshard_after_forward=True)
        settings: Mapping[str, Any] = {key: optimizer.defaults[key] for key in ("lr", "momentum")}
        optimizer = type(optimizer)(model.parameters(), **settings)
        if replicas == OURS:
            from sirtaki.torch.fsdp import accelerate

            accelerate(model, optimizer, mesh, **how, **_local_updates(local_updates))
        assert replicas in (PLAIN, OURS, ALONE)
        return model, optimizer
