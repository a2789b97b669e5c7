"""Systems under test behind one interface; each runs inside a worker process (benchmarks/common/worker.py).

Owned by: the worker. Thread: its main thread. Frameworks are imported when a system starts, so that a worker of one
interpreter needs only the packages of its own systems. Does not: measure, or know the network.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

#: Default bucket sizes of DDP: the bucket that is ready first, small so that the link is busy early, and all others.
_DDP_BUCKETS_MB = (1.0, 25.0)


@dataclass(frozen=True)
class Place:
    """Position of a worker in its job."""

    rank: int
    size: int
    folder: str  # shared by the ranks of this group, empty at the start


class System(Protocol):
    """Interface of a system for workloads. All ranks make the same calls."""

    #: True if the system averages gradients over the ranks.
    averages: bool

    def start(self, place: Place) -> None:
        """Connects to the other ranks."""

    def stop(self) -> None:
        """Disconnects from the other ranks."""

    def allreduce(self, tensor: Any, name: str) -> None:
        """Sums a dense tensor in place over the ranks."""

    def start_allreduce(self, tensor: Any, name: str, priority: int) -> Callable[[], Any]:
        """Starts a sum in place; returns a function that waits for it. `priority`: smaller is more urgent."""

    def allreduce_many(self, tensors: Sequence[Any], names: Sequence[str], order: Sequence[int]) -> None:
        """Sums the tensors in place; this rank submits them in its own `order`."""

    def train(self, model: Any, optimizer: Any, **how: Any) -> tuple[Any, Any]:
        """Returns the model and optimizer that average gradients over the ranks; `how`: arguments of the system."""

    def drain(self, optimizer: Any) -> None:
        """Returns when no message of the last step of this optimizer is in flight."""


class GlooSystem:
    """torch.distributed on Gloo: all_reduce, and DistributedDataParallel for training."""

    averages = True

    def start(self, place: Place) -> None:
        """Opens the process group through a file store; systems of one worker share it."""
        import torch.distributed as dist

        if not dist.is_initialized():
            store = dist.FileStore(str(Path(place.folder) / "gloo_store"), place.size)
            dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size)
        self._dist = dist
        self._flat: Any = None

    def stop(self) -> None:
        """Closes the process group unless another system has closed it."""
        if self._dist.is_initialized():
            self._dist.destroy_process_group()

    def allreduce(self, tensor: Any, name: str) -> None:
        """dist.all_reduce; Gloo has no names."""
        del name
        self._dist.all_reduce(tensor)

    def start_allreduce(self, tensor: Any, name: str, priority: int) -> Callable[[], Any]:
        """dist.all_reduce with async_op; Gloo has no priorities."""
        del name, priority
        wait: Callable[[], Any] = self._dist.all_reduce(tensor, async_op=True).wait
        return wait

    def allreduce_many(self, tensors: Sequence[Any], names: Sequence[str], order: Sequence[int]) -> None:
        """One fused all-reduce: Gloo requires the same order of tensors on all ranks."""
        import torch

        del names, order
        if self._flat is None or self._flat.numel() != sum(t.numel() for t in tensors):
            self._flat = torch.empty(sum(t.numel() for t in tensors))
        torch.cat([t.reshape(-1) for t in tensors], out=self._flat)
        self._dist.all_reduce(self._flat)
        parts = torch.split(self._flat, [t.numel() for t in tensors])
        torch._foreach_copy_(list(tensors), [part.view_as(t) for part, t in zip(parts, tensors, strict=True)])

    def train(self, model: Any, optimizer: Any, **how: Any) -> tuple[Any, Any]:
        """Wraps the model in DDP with its defaults and `how`."""
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, **how), optimizer

    def drain(self, optimizer: Any) -> None:
        """Does nothing, since step() has waited."""


class AloneSystem:
    """No communication at all: the time of a training step if sending were free."""

    averages = False

    def start(self, place: Place) -> None:
        """Does nothing: there are no connections."""

    def stop(self) -> None:
        """Does nothing: there are no connections."""

    def train(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        """Returns model and optimizer unchanged."""
        return model, optimizer

    def drain(self, optimizer: Any) -> None:
        """Does nothing."""


class GlooScaledSystem(GlooSystem):
    """DDP with buckets divided as the model is, and gradients as views of the buckets.

    Both sizes are divided, including that of the first bucket, so that DDP treats the scaled model like the whole one.
    With `bucket_cap_mb` alone the first bucket would be as large as the others. `gradient_as_bucket_view` saves the
    copy out of the buckets; the documentation of DDP recommends it.
    """

    def train(self, model: Any, optimizer: Any, **how: Any) -> tuple[Any, Any]:
        """Wraps the model in DDP whose default bucket sizes are divided by the `scale` of the model."""
        # The first cap of the list is for the bucket that is ready first, the last cap for all later buckets.
        caps: list[Any] = [cap / model.scale for cap in _DDP_BUCKETS_MB]
        return super().train(model, optimizer, bucket_cap_mb_list=caps, gradient_as_bucket_view=True, **how)


class _HorovodLike:
    """Common base of the systems of `horovod.torch` and `sirtaki.torch`."""

    module = ""
    averages = True
    #: Further arguments of DistributedOptimizer.
    how: Mapping[str, Any] = {}

    def start(self, place: Place) -> None:
        """Initialises from the environment variables that the group has set."""
        self._hvd = importlib.import_module(self.module)
        if not self._hvd.is_initialized():
            self._hvd.init()
        if (self._hvd.rank(), self._hvd.size()) != (place.rank, place.size):
            raise RuntimeError(
                f"{self.module} says rank {self._hvd.rank()} of {self._hvd.size()},"
                f" the group rank {place.rank} of {place.size}"
            )

    def stop(self) -> None:
        """Shuts down."""
        self._hvd.shutdown()

    def allreduce(self, tensor: Any, name: str) -> None:
        """allreduce_ under the same name in every call."""
        self._hvd.allreduce_(tensor, name=name, op=self._hvd.Sum)

    def start_allreduce(self, tensor: Any, name: str, priority: int) -> Callable[[], Any]:
        """allreduce_async_; Horovod has no priorities."""
        del priority
        handle = self._hvd.allreduce_async_(tensor, name=name, op=self._hvd.Sum)
        return lambda: self._hvd.synchronize(handle)

    def allreduce_many(self, tensors: Sequence[Any], names: Sequence[str], order: Sequence[int]) -> None:
        """allreduce_async_ for each tensor, then synchronize for each."""
        hvd = self._hvd
        handles = [hvd.allreduce_async_(tensors[i], name=names[i], op=hvd.Sum) for i in order]
        for handle in handles:
            hvd.synchronize(handle)

    def train(self, model: Any, optimizer: Any, **how: Any) -> tuple[Any, Any]:
        """Wraps the optimizer in DistributedOptimizer with defaults, the `how` of the system and the argument `how`."""
        hvd = self._hvd
        named = model.named_parameters()
        wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=named, **{**self.how, **how})
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, wrapped

    def drain(self, optimizer: Any) -> None:
        """Does nothing, since step() has waited."""


class HorovodSystem(_HorovodLike):
    """Horovod; runs in the interpreter that benchmarks/baselines/horovod.sh made."""

    module = "horovod.torch"


class SirtakiSystem(_HorovodLike):
    """Sirtaki with its defaults."""

    module = "sirtaki.torch"

    def train(self, model: Any, optimizer: Any, **how: Any) -> tuple[Any, Any]:
        """Wraps the optimizer; `local_updates` may be the arguments of LocalUpdates, with those of Outer as `outer`."""
        made = local = how.get("local_updates")
        if isinstance(local, dict):
            outer = {"outer": self._hvd.Outer(**local["outer"])} if isinstance(local.get("outer"), dict) else {}
            made = self._hvd.LocalUpdates(**{**local, **outer})
        return super().train(model, optimizer, **{**how, **({"local_updates": made} if made is not None else {})})

    def start_allreduce(self, tensor: Any, name: str, priority: int) -> Callable[[], Any]:
        """allreduce_async_ with a priority."""
        handle = self._hvd.allreduce_async_(tensor, name=name, op=self._hvd.Sum, priority=priority)
        return lambda: self._hvd.synchronize(handle)

    def stats(self) -> dict[str, Any]:
        """Counters of the session."""
        import sirtaki

        found: dict[str, Any] = sirtaki.stats()
        return found

    def start_timeline(self, path: str) -> None:
        """Begins a trace of all ranks."""
        import sirtaki

        sirtaki.start_timeline(path)

    def stop_timeline(self) -> None:
        """Ends the trace."""
        import sirtaki

        sirtaki.stop_timeline()

    def mark(self, name: str, begin_ns: int, end_ns: int) -> None:
        """Adds a span of the program to the trace."""
        from sirtaki import _core

        _core.timeline_mark(name, begin_ns, end_ns)

    def option(self, name: str) -> Any:
        """Value of an option such as "schedule.credit_bytes"."""
        import sirtaki

        return next(option["value"] for option in sirtaki.options() if option["name"] == name)


class SirtakiForwardSystem(SirtakiSystem):
    """Sirtaki whose next forward pass waits for gradients layer by layer; shares the session of SirtakiSystem."""

    how: Mapping[str, Any] = {"sync": "forward"}

    def drain(self, optimizer: Any) -> None:
        """Waits for the gradients of the last step."""
        optimizer.synchronize()


#: name -> "module:Class"; --systems accepts other systems in that form.
SYSTEMS = {
    "sirtaki": "benchmarks.common.systems:SirtakiSystem",
    "sirtaki_forward": "benchmarks.common.systems:SirtakiForwardSystem",
    "gloo": "benchmarks.common.systems:GlooSystem",
    "gloo_scaled": "benchmarks.common.systems:GlooScaledSystem",
    "gloo_fp16": "benchmarks.baselines.torch_compressed:GlooFp16System",
    "gloo_powersgd": "benchmarks.baselines.torch_compressed:PowerSgdSystem",
    "ddp": "benchmarks.adapters.systems:DdpSystem",
    "ddp_idle_hook": "benchmarks.adapters.systems:DdpIdleHookSystem",
    "fsdp": "benchmarks.adapters.systems:FsdpSystem",
    "alone": "benchmarks.common.systems:AloneSystem",
    "horovod": "benchmarks.common.systems:HorovodSystem",
}


def make_system(name: str) -> System:
    """Makes the system of a short name or of "module:Class"."""
    module, _, attribute = SYSTEMS.get(name, name).partition(":")
    factory: Callable[[], System] = getattr(importlib.import_module(module), attribute)
    return factory()
