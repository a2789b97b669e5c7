# ruff: noqa: PLR0917  (Horovod's signature; arguments of forward() have no names)
"""SyncBatchNorm: batch normalization over the joined batches of several ranks.

Method: Ioffe and Szegedy, Batch Normalization, 2015. Means and squared deviations of ranks are merged by Chan, Golub
and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979, which avoids cancellation.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from sirtaki.ops import Ops, ReduceOp
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.torch._adapter import check_kind, torch_ops


class SyncBatchNorm(_BatchNorm):
    """Replaces torch.nn.BatchNorm1d, 2d and 3d; statistics are those of the joined batches of all ranks.

    Ranks may have batches of different sizes, even empty ones, but call their modules in the same order, forward and
    backward. Nothing is sent in evaluation mode. Gradients of weight and bias are local, like those of any parameter.

    Args:
        num_features: C of inputs of shape [N, C, ...]; float16, bfloat16, float32 or float64.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None: their mean over all batches.
        affine: learns weight and bias.
        track_running_stats: keeps running_mean and running_var for evaluation.
        device: device of parameters and buffers, as in torch.
        dtype: dtype of parameters and buffers, as in torch.
        process_set: the ranks whose batches are joined; all by default.

    Raises:
        ValueError: an input without channels, or with one value per channel on all ranks together.
        HorovodInternalError: ranks disagree, or one is lost.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_set: ProcessSet = global_process_set) -> nn.Module:
        """Returns `module`, or its replacement, with every BatchNorm replaced; parameters and buffers are kept.

        Convert before the optimizer is made. Hooks of replaced modules are lost. The ranks of `process_set` share
        statistics.
        """
        made = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            made = cls(module.num_features, module.eps, module.momentum, False, False, process_set=process_set)
            made.affine, made.track_running_stats = module.affine, module.track_running_stats
            made.weight, made.bias = module.weight, module.bias
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(made, name, getattr(module, name))
            made.training = module.training
        for name, child in module.named_children():
            made.add_module(name, cls.convert_sync_batchnorm(child, process_set))
        return made

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input of two dimensions or more, [N, C, ...], not {list(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        """Returns `input`, of shape [N, C, ...], normalized; in training over the ranks of the set (collective).

        Raises ValueError if `input` has another number of channels, or ranks have one value a channel together.
        """
        self._check_input_dim(input)
        ops = torch_ops.within(self.process_set)
        if not self.training or ops.size() == 1:
            return super().forward(input)
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, not {input.shape[1]} of {list(input.shape)}")
        check_kind(input)
        result, mean, var, count = _Normalize.apply(ops, input, self.weight, self.bias, self.eps)
        if self.track_running_stats and self.running_mean is not None:
            self._track(mean, var, count)
        return result

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor, count: float) -> None:
        factor = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        unbiased = var * (count / (count - 1))
        assert self.running_mean is not None
        assert self.running_var is not None
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)


class _Normalize(Function):
    """apply(ops, input, weight, bias, eps) -> (normalized, mean, biased variance, values per channel)."""

    @staticmethod
    def forward(
        ctx: Any, ops: Ops, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """Exchanges means and squared deviations of all ranks in one message."""
        wide = _wide(input)
        mean, squares, count = _moments(ops, wide)
        if count < 2:
            raise ValueError(f"expected more than one value a channel on all ranks together, not {count:g}")
        var = squares / count
        scale = (var + eps).rsqrt()
        ctx.ops, ctx.count = ops, count
        ctx.save_for_backward(input, weight, mean, scale)
        normal = (wide - _along(mean, wide)) * _along(scale, wide)
        result = normal if weight is None else normal * _along(weight, wide) + _along(cast(Tensor, bias), wide)
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return result.to(input.dtype), mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Exchanges the means, over all ranks, of the gradient and of its product with the normalized input."""
        input, weight, mean, scale = ctx.saved_tensors
        grad = torch.zeros_like(input) if grads[0] is None else grads[0]
        wide, out = _wide(input), _wide(grad)
        axes = _axes(wide)
        normal = (wide - _along(mean, wide)) * _along(scale, wide)
        sums = torch.stack([out.sum(axes), (out * normal).sum(axes)])
        grad_weight = grad_bias = None
        if weight is not None:
            grad_weight, grad_bias = sums[1].to(weight.dtype), sums[0].to(weight.dtype)
        name = f"sync_batch_norm.{wide.shape[1]}.backward"
        if weight is not None:
            # Multiplied before the sum: between merges of local updates each rank has its own weights.
            sums, out = sums * weight, out * _along(weight, wide)
        work = ctx.ops.allreduce(sums.double(), name, ReduceOp.SUM, (1.0, 1.0 / ctx.count), in_place=False)
        means = ctx.ops.start_one(work).wait().to(wide.dtype)
        inner = out - _along(means[0], wide) - normal * _along(means[1], wide)
        return None, (inner * _along(scale, wide)).to(input.dtype), grad_weight, grad_bias, None


def _moments(ops: Ops, wide: Tensor) -> tuple[Tensor, Tensor, float]:
    """Returns mean and sum of squared deviations of each channel over all ranks, and values per channel."""
    own = wide.numel() // wide.shape[1]
    axes = _axes(wide)
    if own == 0:
        local = torch.zeros(2, wide.shape[1], dtype=torch.float64, device=wide.device)
    else:
        mean = wide.mean(axes)
        squares = (wide - _along(mean, wide)).square().sum(axes)
        local = torch.stack([mean, squares]).double()
    row = torch.cat([local.flatten(), local.new_tensor([float(own)])]).unsqueeze(0)
    rows = ops.start_one(ops.allgather(row, f"sync_batch_norm.{wide.shape[1]}.forward")).wait()
    counts = rows[:, -1:]
    means, squares = rows[:, :-1].view(-1, 2, wide.shape[1]).unbind(1)
    count = counts.sum()
    mean = (counts * means).sum(0) / count.clamp(min=1)
    total = (squares + counts * (means - mean).square()).sum(0)
    return mean.to(wide.dtype), total.to(wide.dtype), count.item()


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _axes(tensor: Tensor) -> list[int]:
    return [axis for axis in range(tensor.dim()) if axis != 1]


def _along(channels: Tensor, tensor: Tensor) -> Tensor:
    return channels.view(1, -1, *[1] * (tensor.dim() - 2))
