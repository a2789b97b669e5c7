"""Tensors of every dtype: moves by every operation, complex ones combined as pairs of reals, refusals with names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sirtaki.torch as hvd
from ranks.error_cases import fails
from sirtaki._dtypes import WIRE_TYPES
from sirtaki._numpy import numpy_ops

#: Every wire dtype that this version of torch has.
DTYPES = [getattr(torch, name) for name in WIRE_TYPES if hasattr(torch, name)]
COMPLEX = (torch.complex64, torch.complex128)
MOVED = [getattr(torch, name) for name, how in WIRE_TYPES.items() if how.reduce_ops == () and hasattr(torch, name)]


def bits(tensor: Tensor) -> list[int]:
    """Returns the bytes of a tensor, for dtypes that cannot be compared."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def some(dtype: torch.dtype, rank: int, count: int = 3) -> Tensor:
    """Returns elements that differ between ranks; their bytes are valid values in every dtype."""
    size = dtype.itemsize
    content = [1 if dtype is torch.bool else (16 * (rank + 1) + i) % 64 for i in range(count * size)]
    return torch.tensor(content, dtype=torch.uint8).view(dtype)


def case_broadcast_moves_every_type() -> None:
    for dtype in DTYPES:
        tensor = some(dtype, hvd.rank())
        for root in range(hvd.size()):
            out = hvd.broadcast(tensor, root, f"move.{dtype}.{root}")
            assert out.dtype is dtype
            assert bits(out) == bits(some(dtype, root)), dtype
        scalar = some(dtype, hvd.rank(), 1).reshape(())
        hvd.broadcast_(scalar, 0, f"scalar.{dtype}")
        assert bits(scalar) == bits(some(dtype, 0, 1)), dtype


def case_allgather_and_alltoall_move_every_type() -> None:
    for dtype in DTYPES:
        rows = hvd.rank() + 1
        own = some(dtype, hvd.rank(), 2 * rows).view(rows, 2)
        joined = hvd.allgather(own, f"gather.{dtype}")
        assert joined.shape == (sum(range(1, hvd.size() + 1)), 2)
        assert joined.dtype is dtype
        assert bits(joined) == [b for r in range(hvd.size()) for b in bits(some(dtype, r, 2 * (r + 1)))], dtype
        got, counts = hvd.alltoall(some(dtype, hvd.rank(), hvd.size()), [1] * hvd.size(), f"all.{dtype}")
        assert counts.tolist() == [1] * hvd.size()
        place, width = hvd.rank(), dtype.itemsize
        wanted = [bits(some(dtype, r, hvd.size()))[place * width : (place + 1) * width] for r in range(hvd.size())]
        assert bits(got) == [b for part in wanted for b in part], dtype
        assert hvd.allgather(some(dtype, 0, 2)[:0], f"none.{dtype}").shape == (0,)


def case_models_of_every_type_are_broadcast() -> None:
    state = {str(dtype): some(dtype, hvd.rank(), 4).view(2, 2).t() for dtype in DTYPES if dtype.itemsize > 0}
    hvd.broadcast_parameters(state, root_rank=hvd.size() - 1)
    for name, tensor in state.items():
        dtype = tensor.dtype
        assert bits(tensor) == bits(some(dtype, hvd.size() - 1, 4).view(2, 2).t()), name


def case_other_types_of_the_same_size_do_not_meet() -> None:
    pairs = ((torch.complex64, torch.int64), (torch.uint32, torch.int32), (torch.float8_e4m3fn, torch.uint8))
    for number, pair in enumerate((*pairs, (torch.float8_e4m3fn, torch.float8_e5m2), (torch.uint64, torch.complex64))):
        tensor = some(pair[min(hvd.rank(), 1)], 0)
        fails(lambda t=tensor, n=number: hvd.broadcast(t, 0, f"types.{n}"), RuntimeError, f"types.{number}", "disagree")


def complex_of(dtype: torch.dtype, rank: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    real, imag = (torch.randint(-8, 8, shape, generator=generator).double() for _ in range(2))
    return torch.complex(real, imag).to(dtype)


def case_complex_numbers_are_summed_as_pairs() -> None:
    for dtype in COMPLEX:
        every = [complex_of(dtype, r, 4, 3) for r in range(hvd.size())]
        own, total = every[hvd.rank()], sum(every)
        assert torch.equal(hvd.allreduce(own, op=hvd.Sum, name=f"sum.{dtype}"), total)
        torch.testing.assert_close(hvd.allreduce(own, name=f"mean.{dtype}"), total / hvd.size())
        halved = hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, name=f"half.{dtype}")
        assert torch.equal(halved, total / 2)
        kept = hvd.reducescatter(own, op=hvd.Sum, name=f"block.{dtype}")
        rows = total.tensor_split(hvd.size())
        assert torch.equal(kept, rows[hvd.rank()])
        for view in (own.clone().t(), own.conj(), own.clone().real, torch.view_as_real(own.clone())):
            told = view.shape, view.dtype
            once = hvd.allreduce(view, op=hvd.Sum, name=f"view.{dtype}.{told}")
            assert (once.shape, once.dtype) == told
        written = complex_of(dtype, hvd.rank(), 4, 3).conj()
        hvd.allreduce_(written, op=hvd.Sum, name=f"conjugated.{dtype}")
        assert torch.equal(written, total.conj())
        sparse = own.to_sparse()
        torch.testing.assert_close(hvd.sparse_allreduce_async(sparse, f"sparse.{dtype}", hvd.Sum)().to_dense(), total)


def case_gradients_go_through_sums_of_complex_numbers() -> None:
    leaf = complex_of(torch.complex64, hvd.rank(), 3).requires_grad_()
    hvd.allreduce(leaf, op=hvd.Sum, name="leaf").abs().square().sum().backward()
    total = sum(complex_of(torch.complex64, r, 3) for r in range(hvd.size()))
    torch.testing.assert_close(leaf.grad, 2 * total * hvd.size())


def case_what_has_no_meaning_is_refused_by_name() -> None:
    here = f"on rank {hvd.rank()}"
    number = complex_of(torch.complex64, 0, 2)
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        fails(lambda op=op: hvd.allreduce(number, op=op, name="z"), ValueError, "'z'", "complex64", "Sum", here)
    for dtype in MOVED:
        told = ("'rare'", str(dtype)[6:], "convert", here)
        fails(lambda d=dtype: hvd.allreduce(some(d, 0), name="rare"), ValueError, *told)
    fails(lambda: hvd.reducescatter(some(torch.uint64, 0), name="r"), ValueError, "'r'", "uint64", "int64", here)
    fails(lambda: hvd.allreduce(torch.ones(2).to_sparse(), name="s"), ValueError, "'s'", "sparse", here)


class Spectral(nn.Module):
    """A layer with complex weights and a real bias, as after a Fourier transform."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(complex_of(torch.complex128, 5, 3, 4))
        self.bias = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight @ x.to(torch.complex128)).abs() + self.bias[:, None]


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(10 * step + rank), dtype=torch.float64)
    return model(x).square().mean()


def train_like_one(distribute: Callable[[nn.Module], tuple[Any, nn.Module]]) -> None:
    """Complex weights trained on all ranks equal those of one process that trains on all batches."""
    model, alone = Spectral(), Spectral()
    optimizer, called = distribute(model)
    plain = torch.optim.Adam(alone.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        _loss(called, hvd.rank(), step).backward()
        optimizer.step()
        plain.zero_grad()
        (sum(_loss(alone, rank, step) for rank in range(hvd.size())) / hvd.size()).backward()
        plain.step()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def case_optimizers_train_complex_weights() -> None:
    for sync in ("backward", "step", "forward"):

        def distribute(model: nn.Module, sync: str = sync) -> tuple[Any, nn.Module]:
            plain = torch.optim.Adam(model.parameters(), lr=0.1)
            made = hvd.DistributedOptimizer(plain, model.named_parameters(), sync=sync)
            made.step = lambda step=made.step: (step(), made.wait())
            return made, model

        train_like_one(distribute)


def case_gradients_of_complex_weights_are_compressed() -> None:
    """The residual of complex gradients is kept, saved and restored as complex numbers."""
    weight = nn.Parameter(torch.zeros(4000, dtype=torch.complex64))
    plain = torch.optim.SGD([weight], lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, [("weight", weight)], compression="group_topk")
    every = [complex_of(torch.complex64, rank, 4000) for rank in range(hvd.size())]
    (weight * every[hvd.rank()].conj()).real.sum().backward()
    optimizer.step()
    owed = optimizer.gather_state()["sirtaki"]["owed"]["weight"]
    assert owed.dtype is torch.complex64
    assert owed.abs().sum() > 0
    torch.testing.assert_close(owed / hvd.size() - weight.detach(), sum(every) / hvd.size())
    optimizer.flush()
    torch.testing.assert_close(-weight.detach(), sum(every) / hvd.size())


def case_arrays_of_every_type_are_moved() -> None:
    for name in WIRE_TYPES:
        dtype = getattr(np, "bool_" if name == "bool" else name, None)
        if dtype is None:
            continue
        array = np.full((2, 2), hvd.rank() % 2, dtype)
        moved = numpy_ops.start_one(numpy_ops.broadcast(array, 1, f"np.{name}", in_place=True)).wait()
        assert moved.dtype == array.dtype
        assert (moved == np.ones((2, 2), dtype)).all(), name
        joined = numpy_ops.start_one(numpy_ops.allgather(array, f"np.g.{name}")).wait()
        assert joined.shape == (2 * hvd.size(), 2)
