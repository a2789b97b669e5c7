"""Codecs of the runtime in torch, for ranks that one process simulates: gradients of all ranks in, their mean out.

Thread: that of the caller. Does not: pack payloads; their sizes are those of compression/codecs.
Method: the codecs and reductions of the same names, with a residual for every rank and for the owner of every sum. A
test trains a few steps with each and compares the losses with those of the runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

#: Encodes and decodes: takes and returns a tensor of a row for each rank.
Encode = Callable[[Tensor], Tensor]
_LEAST = 2.0**-126
#: Elements of a scale (int8, int4), of a mean (onebit), of a threshold (sums of twobit), as in compression/codecs.
_EIGHT, _FOUR, _ONEBIT, _TWOBIT = 256, 32, 1024, 2048
#: Elements that share their offsets in a sparse payload, and bytes of an entry.
_TILE, _ENTRY = 4096, 6
_REESTIMATE, _CONTROL = 32, 1.1


class Exchange(Protocol):
    """The reduction of one tensor, with its state from step to step."""

    #: Bytes that a rank sends in a step.
    sent: float

    def mean(self, gradients: Tensor) -> Tensor:
        """Takes the gradients of all ranks, a row each; returns their mean as every rank receives it."""


def allreduce_bytes(payload: float, ranks: int) -> float:
    """Returns the bytes that a rank sends in an all-reduce of a payload."""
    return 2 * (ranks - 1) / ranks * payload


def _sum(rows: Tensor) -> Tensor:
    """Adds the rows in their order, as the runtime does."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


# ---- encodings -----------------------------------------------------------------------------


def _power(exponent: Tensor) -> Tensor:
    """Returns powers of two as float32, exactly."""
    return ((exponent.clamp(-126, 127).to(torch.int32) + 127) << 23).view(torch.float32)


def _blocks(rows: Tensor, block: int) -> Tensor:
    """Cuts every row into blocks, the last one filled up with zeros."""
    return F.pad(rows, (0, -rows.shape[1] % block)).view(len(rows), -1, block)


def _mean_magnitudes(blocks: Tensor, numel: int) -> Tensor:
    """Returns the mean magnitude of each block as float64; `numel`: elements of a row without the filling."""
    count = torch.full((blocks.shape[1],), blocks.shape[2], dtype=torch.float64)
    count[-1] = numel - (blocks.shape[1] - 1) * blocks.shape[2]
    return (blocks.abs().double().sum(2) / count).unsqueeze(2)


def scaled(rows: Tensor, largest: int, block: int) -> Tensor:
    """Rounds to integers up to `largest` times a power of two for each block: int8 with 127, int4 with 7."""
    blocks = _blocks(rows, block)
    mantissa, exponent = torch.frexp((blocks.abs().amax(2, keepdim=True) / largest).clamp_min(_LEAST))
    scale = _power(exponent - (mantissa == 0.5).int())
    return (torch.round(blocks / scale) * scale).flatten(1)[:, : rows.shape[1]]


def _ternary(blocks: Tensor, mean: Tensor) -> Tensor:
    """Rounds to the nearest of +t, -t and 0, with t the power of two below twice the mean magnitude."""
    wanted = torch.minimum(2 * mean, blocks.abs().amax(2, keepdim=True).double()).clamp_min(_LEAST)
    t = _power(torch.frexp(wanted).exponent - 1)
    return torch.where(blocks.abs() >= t / 2, torch.sign(blocks) * t, 0.0)


def twobit(rows: Tensor, block: int = 0) -> Tensor:
    """Encodes with one threshold for each block; 0: one for the whole row."""
    blocks = _blocks(rows, block or rows.shape[1])
    return _ternary(blocks, _mean_magnitudes(blocks, rows.shape[1])).flatten(1)[:, : rows.shape[1]]


def onebit(rows: Tensor) -> Tensor:
    """Encodes signs, with the power of two nearest to the mean magnitude of each block."""
    blocks = _blocks(rows, _ONEBIT)
    mean = _mean_magnitudes(blocks, rows.shape[1])
    mantissa, exponent = torch.frexp(mean)
    scale = torch.where(mean < _LEAST, 0.0, _power(exponent - (mantissa < 0.75).int()))
    return torch.where(blocks < 0, -scale, scale).flatten(1)[:, : rows.shape[1]]


# ---- exchanges -----------------------------------------------------------------------------


class Dense:
    """float32, summed by an all-reduce."""

    def __init__(self, shape: torch.Size, ranks: int) -> None:
        self.sent = allreduce_bytes(4 * shape.numel(), ranks)

    def mean(self, gradients: Tensor) -> Tensor:
        """See Exchange."""
        return _sum(gradients) / len(gradients)


class Scattered:
    """Every rank encodes; owners add up, and encode the sums with residuals of their own (`wire=scatter`)."""

    def __init__(self, encode: Encode, encode_sum: Encode, bits: float, shape: torch.Size, ranks: int) -> None:
        self._encode, self._encode_sum = encode, encode_sum
        self._residual = torch.zeros(ranks, shape.numel())
        self._of_sum = torch.zeros(1, shape.numel())
        self.sent = allreduce_bytes(shape.numel() * bits / 8, ranks)

    def mean(self, gradients: Tensor) -> Tensor:
        """See Exchange."""
        rows = gradients.flatten(1) + self._residual
        sent = self._encode(rows)
        self._residual = rows - sent
        total = _sum(sent) + self._of_sum
        result = self._encode_sum(total)
        self._of_sum = total - result
        return (result / len(gradients)).view(gradients.shape[1:])


class ThresholdSparse:
    """Every rank sends its largest elements to all (`wire=gather`), with or without momentum correction."""

    def __init__(self, density: float, momentum: float, shape: torch.Size, ranks: int) -> None:
        numel = shape.numel()
        self._wanted = max(1, int(numel * density + 0.5))
        self._capacity = min(numel, (5 * self._wanted + 3) // 4)
        self._factor, self._momentum = momentum, torch.zeros(ranks, numel)
        self._residual = torch.zeros(ranks, numel)
        self._threshold = torch.zeros(ranks, 1)
        self._uses = 0
        self.sent = (ranks - 1) * (4 + 2 * -(-numel // _TILE) + _ENTRY * self._capacity)

    def mean(self, gradients: Tensor) -> Tensor:
        """See Exchange."""
        rows = gradients.flatten(1)
        if self._factor:
            rows = self._momentum = self._factor * self._momentum + rows
        rows = rows + self._residual
        sizes = rows.abs()
        self._estimate(sizes)
        chosen = sizes >= self._threshold.clamp_min(torch.finfo(torch.float32).tiny)
        reached = chosen.sum(1, keepdim=True)
        for rank in torch.nonzero(reached[:, 0] > self._capacity)[:, 0].tolist():
            chosen[rank] = False
            chosen[rank, sizes[rank].topk(self._capacity).indices] = True
        self._residual = torch.where(chosen, 0.0, rows)
        if self._factor:
            self._momentum = torch.where(chosen, 0.0, self._momentum)
        self._threshold = torch.where(3 * reached < 2 * self._wanted, self._threshold / _CONTROL, self._threshold)
        self._threshold = torch.where(4 * reached > 5 * self._wanted, self._threshold * _CONTROL, self._threshold)
        return (_sum(torch.where(chosen, rows, 0.0)) / len(gradients)).view(gradients.shape[1:])

    def _estimate(self, sizes: Tensor) -> None:
        due = self._threshold == 0 if self._uses % _REESTIMATE else torch.ones_like(self._threshold, dtype=torch.bool)
        self._uses += 1
        if due.any():
            self._threshold = torch.where(due, sizes.topk(self._wanted, 1).values[:, -1:], self._threshold)


class LowRank:
    """Ranks add up two thin factors of each matrix (`powersgd`); each step starts from the factors of the last one.

    The method is linear, so the mean over the ranks of gradients and residuals is all that counts.
    """

    def __init__(self, rank: int, shape: torch.Size, ranks: int) -> None:
        rows, cols = shape[0], shape[1:].numel()
        rank = min(rank, rows, cols)
        self._residual = torch.zeros(rows, cols)
        self._q = torch.zeros(cols, rank)
        self._fresh, self._starts = list(range(rank)), 0
        self.sent = allreduce_bytes(4 * rank * (rows + cols), ranks)

    def mean(self, gradients: Tensor) -> Tensor:
        """See Exchange."""
        matrix = (_sum(gradients) / len(gradients)).view_as(self._residual) + self._residual
        for vector in self._fresh:
            self._starts += 1
            self._q[:, vector] = _spread(self._starts << 32, len(self._q))
        projected = (matrix @ self._q).double()
        p, r = torch.linalg.qr(projected)
        # Vectors that depend linearly on others carry nothing and start again.
        gone = ~(r.diagonal().abs() > 1e-5 * projected.norm(dim=0))
        self._fresh = torch.nonzero(gone)[:, 0].tolist()
        p = torch.where(gone, 0.0, p).float()
        self._q = matrix.t() @ p
        result = p @ self._q.t()
        self._residual = matrix - result
        return result.view(gradients.shape[1:])


def _spread(first: int, count: int) -> Tensor:
    """Returns the numbers of compression/low_rank_factors.cc, spread evenly over (-1, 1)."""
    bits = (np.arange(count, dtype=np.uint64) + np.uint64(first)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return torch.from_numpy(((bits >> np.uint64(41)).astype(np.float64) + 0.5) * 2.0**-22 - 1.0).float()


# ---- levels --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """A level of compression; `option`: the same in the runtime, empty if it has none."""

    option: str
    open: Callable[[torch.Size, int], Exchange]
    linear: bool = False  # the mean gradient is all that counts
    momentum: float = 0.0  # of the codec, in place of that of the optimizer


def _scattered(option: str, encode: Encode, encode_sum: Encode, bits: float) -> Level:
    return Level(option, partial(Scattered, encode, encode_sum, bits))


def _low_rank(rank: int) -> Level:
    return Level(f"powersgd:rank={rank}", partial(LowRank, rank), linear=True)


def _sparse(percent: int, momentum: float = 0.0) -> Level:
    text = f"threshold_sparse:density={percent}%,wire=gather" + (f",momentum={momentum}" if momentum else "")
    return Level(text, partial(ThresholdSparse, percent / 100, momentum), momentum=momentum)


_INT8, _INT4 = partial(scaled, largest=127, block=_EIGHT), partial(scaled, largest=7, block=_FOUR)
DENSE, ROUNDING = "dense", "rounding"
LEVELS = {
    DENSE: Level("none", Dense, linear=True),
    # A control: dense sums in another order. Its cost is the difference that rounding alone makes in the end.
    ROUNDING: Level("", Dense),
    "int8": _scattered("int8:wire=scatter", _INT8, _INT8, 8 + 8 / _EIGHT),
    "int4": _scattered("int4:wire=scatter", _INT4, _INT4, 4 + 8 / _FOUR),
    "powersgd_8": _low_rank(8),
    "powersgd_4": _low_rank(4),
    "powersgd_2": _low_rank(2),
    "powersgd_1": _low_rank(1),
    "twobit": _scattered("twobit:wire=scatter", twobit, partial(twobit, block=_TWOBIT), 2 + 8 / _TWOBIT),
    "onebit": _scattered("onebit:wire=scatter", onebit, onebit, 1 + 8 / _ONEBIT),
    "sparse_4%": _sparse(4),
    "sparse_2%": _sparse(2),
    "sparse_1%": _sparse(1),
    "sparse_2%_momentum": _sparse(2, 0.9),
    "sparse_1%_momentum": _sparse(1, 0.9),
}
