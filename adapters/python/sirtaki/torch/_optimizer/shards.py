"""Shards: the parts of sharded parameters (DTensor) that this rank holds.

A reducer of gradients works on memory, which a DTensor keeps in a tensor inside. A Shard is that tensor, with the
gradient and the hooks of the whole parameter; optimizers and their states know the whole parameter only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def local_of(value: Any) -> Any:
    """Returns the part of a DTensor that this rank holds; any other value itself."""
    return getattr(value, "_local_tensor", value)


def whole_of(param: Tensor) -> Tensor:
    """Returns the parameter, as an optimizer has it, of a tensor that a reducer works on."""
    return param.whole if isinstance(param, Shard) else param


def memory_of(param: Tensor) -> Tensor:
    """Returns the memory of a parameter on this rank, outside autograd."""
    memory: Tensor = local_of(whole_of(param)).detach()
    return memory


def like_whole(local: Tensor, whole: Any) -> Tensor:
    """Returns a DTensor laid out as `whole` over memory of its part on this rank. Sends nothing."""
    from torch.distributed.tensor import DTensor  # an import of seconds, and only sharded models need it

    how = {"run_check": False, "shape": whole.shape, "stride": whole.stride()}
    return DTensor.from_local(local, whole.device_mesh, whole.placements, **how)


class Shard(Tensor):
    """Part of a sharded parameter; gradients and hooks are those of the whole."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    whole: Any

    @staticmethod
    def of(whole: Any) -> Shard:
        """Returns the part of a DTensor, over the same memory."""
        made: Shard = Tensor._make_subclass(Shard, local_of(whole).detach(), True)
        made.whole = whole
        return made

    @property
    def grad(self) -> Tensor | None:
        """Gradient of this part."""
        grad: Tensor | None = local_of(self.whole.grad)
        return grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self.whole.grad = None if value is None else like_whole(value, self.whole)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> Any:
        """Calls `hook` with this part when FSDP has combined the gradients of the parts."""

        def call(whole: Any) -> None:
            memory = local_of(whole)
            if memory.data_ptr() != self.data_ptr():
                # FSDP lays parts out anew in its first forward pass if a checkpoint has replaced them.
                self.data = memory.detach()
            hook(self)

        return self.whole.register_post_accumulate_grad_hook(call)
