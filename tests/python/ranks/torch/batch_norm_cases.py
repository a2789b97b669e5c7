"""SyncBatchNorm against the BatchNorm of torch on the joined batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import sirtaki.torch as hvd
from ranks.error_cases import fails

PLAIN = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def _rows(rank: int, even: bool) -> int:
    return 4 if even else 1 + 2 * rank


def _batch(step: int, shape: tuple[int, ...], ranks: list[int], even: bool, dtype: torch.dtype) -> list[Tensor]:
    draws = [torch.Generator().manual_seed(100 * step + rank) for rank in ranks]
    shapes = [(_rows(rank, even), *shape) for rank in ranks]
    pairs = zip(shapes, draws, strict=True)
    return [(10 + 3 * torch.randn(s, generator=draw, dtype=torch.float64)).to(dtype) for s, draw in pairs]


def _compare(
    shape: tuple[int, ...],
    even: bool = True,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-10,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    **options: Any,
) -> None:
    ranks = process_set.ranks
    me = process_set.rank()
    ours = hvd.SyncBatchNorm(shape[0], process_set=process_set, dtype=dtype, **options)
    plain = PLAIN[len(shape) + 1](shape[0], dtype=dtype, **options)
    if plain.affine:
        with torch.no_grad():
            for one in (ours, plain):
                one.weight.copy_(torch.linspace(0.5, 2, shape[0]))
                one.bias.copy_(torch.linspace(-1, 1, shape[0]))
    for step in range(3):
        parts = _batch(step, shape, ranks, even, dtype)
        mine = parts[me].clone().requires_grad_()
        joined = torch.cat(parts).requires_grad_()
        out, expected = ours(mine), plain(joined)
        begin = sum(_rows(rank, even) for rank in ranks[:me])
        rows = slice(begin, begin + mine.shape[0])
        assert out.dtype is dtype
        assert torch.allclose(out, expected[rows], rtol=tolerance, atol=tolerance), (out - expected[rows]).abs().max()
        factors = torch.linspace(-1, 2, joined.numel(), dtype=dtype).view(joined.shape)
        for one in (ours, plain):
            one.zero_grad()
        (out * factors[rows]).sum().backward()
        (expected * factors).sum().backward()
        close = torch.allclose(mine.grad, joined.grad[rows], rtol=10 * tolerance, atol=10 * tolerance)
        assert close, (mine.grad - joined.grad[rows]).abs().max()
        if plain.affine:
            for p, q in ((ours.weight, plain.weight), (ours.bias, plain.bias)):
                total = hvd.allreduce(p.grad, op=hvd.Sum, process_set=process_set)
                assert torch.allclose(total, q.grad, rtol=100 * tolerance, atol=100 * tolerance)
        if plain.track_running_stats:
            assert ours.num_batches_tracked == plain.num_batches_tracked
            assert torch.allclose(ours.running_mean, plain.running_mean, rtol=tolerance, atol=tolerance)
            assert torch.allclose(ours.running_var, plain.running_var, rtol=tolerance, atol=tolerance)
    ours.eval()
    plain.eval()
    again = _batch(9, shape, ranks, even, dtype)[me]
    assert torch.allclose(ours(again), plain(again), rtol=10 * tolerance, atol=10 * tolerance)


def case_every_number_of_dimensions() -> None:
    for shape in ((3,), (3, 5), (3, 4, 2), (2, 2, 3, 2)):
        _compare(shape)


def case_batches_of_different_sizes() -> None:
    _compare((3, 4, 4), even=False)


def case_without_weights_with_other_momenta() -> None:
    _compare((3, 4), affine=False)
    _compare((3, 4), momentum=None)
    _compare((3, 4), momentum=0.5, eps=0.1)
    _compare((3, 4), track_running_stats=False)


def case_float32_far_from_zero() -> None:
    _compare((4, 6, 6), dtype=torch.float32, tolerance=2e-5)


def case_halves_are_computed_in_float32() -> None:
    norm = hvd.SyncBatchNorm(3)
    x = (torch.randn(8, 3, 4) * 2 + 1).bfloat16().requires_grad_()
    out = norm(x)
    assert out.dtype is torch.bfloat16
    out.float().square().sum().backward()
    assert x.grad.dtype is torch.bfloat16
    gathered = hvd.allgather(out.detach().float())
    assert gathered.mean((0, 2)).abs().max() < 0.05
    assert (gathered.var((0, 2)) - 1).abs().max() < 0.05


def case_a_rank_without_samples() -> None:
    norm = hvd.SyncBatchNorm(2, affine=False)
    rows = 0 if hvd.rank() == 0 else 3
    x = (torch.arange(float(rows * 2)).view(rows, 2) * hvd.rank()).requires_grad_()
    out = norm(x)
    assert out.shape == x.shape
    out.sum().backward()
    assert not out.isnan().any()
    assert torch.allclose(hvd.allgather(out.detach()).mean(0), torch.zeros(2), atol=1e-6)


def case_ranks_of_a_set() -> None:
    process_set = hvd.ProcessSet([0, hvd.size() - 1])
    if process_set.included():
        _compare((3, 4), process_set=process_set)


def case_a_model_is_converted() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48)))
    names = list(dict(model.named_parameters()))
    keys = list(model.state_dict())
    weight = model[1].weight
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert isinstance(model[1], hvd.SyncBatchNorm)
    assert isinstance(model[2][1], hvd.SyncBatchNorm)
    assert model[1].weight is weight
    assert list(dict(model.named_parameters())) == names
    assert list(model.state_dict()) == keys
    again = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert again[1] is model[1]
    assert isinstance(hvd.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2)), hvd.SyncBatchNorm)
    model(torch.randn(2, 1, 6, 6)).sum().backward()


def case_training_as_with_the_whole_batch() -> None:
    torch.manual_seed(2)
    parts = [nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)).double() for _ in range(2)]
    parts[1].load_state_dict(parts[0].state_dict())
    model, reference = hvd.SyncBatchNorm.convert_sync_batchnorm(parts[0]), parts[1]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(5):
        draw = torch.Generator().manual_seed(step)
        inputs = torch.randn(4 * hvd.size(), 5, generator=draw, dtype=torch.float64)
        for one, its, part in ((model, optimizer, inputs.chunk(hvd.size())[hvd.rank()]), (reference, plain, inputs)):
            its.zero_grad()
            one(part).square().mean().backward()
            its.step()
    for p, q in zip(model.state_dict().values(), reference.state_dict().values(), strict=True):
        assert torch.allclose(p.double(), q.double(), rtol=1e-9, atol=1e-9)


def case_wrong_inputs_are_told() -> None:
    fails(lambda: hvd.SyncBatchNorm(3)(torch.ones(3)), ValueError, "two dimensions")
    fails(lambda: hvd.SyncBatchNorm(3)(torch.ones(2, 4)), ValueError, "3 channels")
    empty = torch.ones(1 if hvd.rank() == 0 else 0, 3)
    fails(lambda: hvd.SyncBatchNorm(3)(empty), ValueError, "more than one value")
