"""Transfer of a TorchState in sync(): tensors of torch, by the operations of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sirtaki.elastic import _transfer
from sirtaki.torch._adapter import torch_ops
from sirtaki.torch.elastic._compared import is_plain, row_major_bytes, write_bytes
from sirtaki.torch.elastic._comparison import Job


class _Sync(Job):
    ROWS = _transfer.CALL


class Transfer(_transfer.Transfer):
    """Implements sirtaki.elastic._transfer.Transfer. Objects that are no plain tensors are left for a broadcast."""

    def _digest(self, tensor: Any) -> bytes | None:
        if not is_plain(tensor):
            return None
        return _transfer.digest(f"{tensor.dtype}{tuple(tensor.shape)}", self._read(tensor).numpy())

    def _rows(self, row: list[int]) -> list[list[int]]:
        return _Sync().rows(row)

    def _size(self, tensor: Tensor) -> int:
        return tensor.numel() * tensor.element_size()

    def _read(self, tensor: Tensor) -> Tensor:
        return row_major_bytes(tensor.detach())

    def _write(self, tensor: Tensor, values: Tensor) -> None:
        write_bytes(tensor.detach(), values.clone())  # clone() aligns the memory for view()

    def _exchange(self, parts: Sequence[Tensor], splits: Sequence[int]) -> Tensor:
        data = torch.cat([torch.empty(0, dtype=torch.uint8, device="cpu"), *parts])
        work = torch_ops.alltoall(data, splits, _transfer.VALUES, False)
        result: Tensor = torch_ops.start_one(work).wait()
        return result
