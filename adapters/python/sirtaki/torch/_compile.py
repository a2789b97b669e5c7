"""torch.compile in regions: gradients of the last layers are ready while backward computes those of the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sirtaki.errors import require

#: Regions of a model without `bucket_bytes`.
REGIONS = 8


class _RegionBackend:
    """Backend of torch.compile that divides each graph as torch does for DistributedDataParallel."""

    def __init__(self, backend: Any, bucket_bytes: int) -> None:
        self._backend = backend
        self._bucket_bytes = bucket_bytes
        self.reset = backend.reset  # called by torch.compiler.reset()

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        if DistributedDataParallel._get_active_ddp_module() is not None:
            return self._backend(graph, inputs)  # divided by bucket_cap_mb already
        from torch._dynamo.backends.distributed import DDPOptimizer

        return DDPOptimizer(self._bucket_bytes, self._backend, self._bucket_bytes).compile_fn(graph, inputs)


def compile(
    model: nn.Module,
    *,
    bucket_bytes: int | None = None,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    dynamic: bool | None = None,
    **more: Any,
) -> Any:
    """Compiles a model in regions whose gradients become ready one region after another, last layers first.

    torch.compile makes one function of the whole backward, so that all gradients become ready at its end, and none is
    sent while it runs. The results are those of torch.compile. Inside DistributedDataParallel torch divides the model
    itself, by `bucket_cap_mb`, and this function does what torch.compile does.

    Args:
        model: the model, to be compiled when it is called.
        bucket_bytes: bytes of parameters of a region; a region ends after the operation that reaches this size. By
            default a model has about 8 regions.
        backend: backend of torch.compile.
        mode: mode of torch.compile, for example "max-autotune".
        options: options of the backend.
        dynamic: True, False or None, for shapes that change.
        **more: other arguments of torch.compile.

    Returns:
        The result of torch.compile.

    Raises:
        InvalidArgumentError: `bucket_bytes` is not positive, or `model` is no module.
    """
    require(
        isinstance(model, nn.Module),
        f"sirtaki.torch.compile() takes a torch.nn.Module, not {type(model).__name__}; compile the model and leave the "
        "function that calls it as it is",
    )
    if bucket_bytes is None:
        total = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        bucket_bytes = max(1, total // REGIONS)
    require(bucket_bytes > 0, f"bucket_bytes is {bucket_bytes}; it must be positive")
    if backend == "inductor":
        inner: Any = torch._TorchCompileInductorWrapper(mode, options, dynamic)
    else:
        inner = torch._TorchCompileWrapper(backend, mode, options, dynamic)
    return torch.compile(model, backend=_RegionBackend(inner, bucket_bytes), dynamic=dynamic, **more)
