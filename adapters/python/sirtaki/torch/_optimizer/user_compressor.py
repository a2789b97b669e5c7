"""Compressors of the program, with the protocol of Horovod: compress(), an allreduce by name, decompress().

A gradient is compressed when it is complete and sent when all ranks have finished the step, so that a failure makes the
step void on all ranks. The output of compress() must have the same shape and dtype on all ranks, and its sum must be
meaningful, because the runtime sums or averages it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sirtaki import errors
from sirtaki.ops import ReduceOp
from sirtaki.torch._adapter import check_kind, wire_type_of
from sirtaki.torch._optimizer.options import ReducerOptions
from sirtaki.torch._optimizer.step_errors import edited_grad_text


class Packed(NamedTuple):
    """One compressed gradient."""

    grad: Tensor | None  # None: this rank has none, and zeros are sent
    version: int
    payload: Tensor
    context: Any  # for decompress()


def pack(param: Tensor, name: str, compressor: Any) -> Packed:
    """Compresses the gradient of a parameter.

    Raises:
        InvalidArgumentError: compress() returned something else than a pair, or a tensor that cannot be sent.
    """
    grad = param.grad
    given = torch.zeros_like(param) if grad is None else grad
    made = compressor.compress(given.detach())
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], Tensor):
        raise errors.InvalidArgumentError(
            f"{_name(compressor)}.compress() gave {type(made).__name__} for {name}; it must give a pair of the tensor "
            "to send and what decompress() needs"
        )
    payload, context = made
    try:
        check_kind(payload)
        wire_type_of(payload.dtype, ReduceOp.SUM)
    except errors.SirtakiError as error:
        raise type(error)(f"{_name(compressor)}.compress() of {name}: {error}") from None
    return Packed(grad, 0 if grad is None else grad._version, payload, context)


def exchange(
    packed: dict[int, Packed], names: list[str], params: list[Tensor], options: ReducerOptions
) -> Callable[[], None]:
    """Starts the allreduce of compressed gradients; returns a function that waits and writes the gradients."""
    order = sorted(packed)
    scales = (options.prescale, options.postscale)
    used = torch.tensor([packed[i].grad is not None for i in order], dtype=torch.uint8, device="cpu")
    work = [options.ops.allreduce(used, f"{options.stream_name}.used", ReduceOp.MAX, (1.0, 1.0), in_place=True)]
    for i in order:
        name = f"{options.stream_name}.{names[i]}"
        work.append(options.ops.allreduce(packed[i].payload, name, options.op, scales, in_place=False))
    handles = options.ops.start(work)

    def finish() -> None:
        flags = handles[0].wait().tolist()
        results = [handle.wait() for handle in handles[1:]]
        for i, flag, result in zip(order, flags, results, strict=True):
            own = packed[i]
            if own.grad is not None and (params[i].grad is not own.grad or own.grad._version != own.version):
                raise RuntimeError(edited_grad_text(names[i]))
            if flag:
                _write(params[i], names[i], own, options.compressor.decompress(result, own.context))

    return finish


def _write(param: Tensor, name: str, packed: Packed, value: Any) -> None:
    if not isinstance(value, Tensor) or value.shape != param.shape or value.dtype is not param.dtype:
        raise errors.InvalidArgumentError(
            f"decompress() of the compressor gave {_kind(value)} for {name}, whose gradient is {_kind(param)}; it must "
            "undo what compress() did to shape and dtype"
        )
    with torch.no_grad():
        if packed.grad is None:
            param.grad = value.detach()
        else:
            packed.grad.copy_(value)


def _name(compressor: Any) -> str:
    return getattr(compressor, "__name__", type(compressor).__name__)


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{value.dtype} {list(value.shape)}".removeprefix("torch.")
