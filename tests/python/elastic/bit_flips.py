"""Faults of memory for tests: flipped bits of tensors."""

from __future__ import annotations

from typing import Any

from sirtaki.torch.elastic._compared import row_major_bytes, write_bytes


def flip(tensor: Any, bit: int = 3) -> None:
    """Flips one bit of the last element."""
    values = row_major_bytes(tensor.detach()).clone()
    values[-1] ^= 1 << bit
    write_bytes(tensor.detach(), values)
