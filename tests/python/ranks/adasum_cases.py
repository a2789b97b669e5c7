"""Adasum against its definition in float64, for any number of ranks."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sirtaki.torch as hvd
from ranks.error_cases import fails


def adasum(tensors: list[Tensor]) -> Tensor:
    """Returns the Adasum of `tensors` by its definition, computed in float64."""
    if len(tensors) == 1:
        return tensors[0].double()
    middle = (len(tensors) + 1) // 2
    a, b = adasum(tensors[:middle]), adasum(tensors[middle:])
    both, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    if aa == 0 or bb == 0:
        return a + b
    return (1 - both / (2 * aa)) * a + (1 - both / (2 * bb)) * b


def _drawn(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Returns a tensor of a rank that resembles those of other ranks, as gradients do."""
    common = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    own = torch.randn(shape, generator=torch.Generator().manual_seed(2 + rank), dtype=torch.float64)
    return (common + own).to(dtype)


def _expect(result: Tensor, tensors: list[Tensor], scale: float = 1.0) -> None:
    expected = scale * adasum(tensors)
    step = torch.finfo(result.dtype).eps
    assert torch.allclose(result.double(), expected, rtol=2 * step, atol=8 * step), (result - expected).abs().max()


def _same_everywhere(tensor: Tensor, process_set: hvd.ProcessSet = hvd.global_process_set) -> None:
    gathered = hvd.allgather(tensor.detach().flatten().unsqueeze(0), process_set=process_set)
    assert torch.equal(gathered, gathered[:1].expand_as(gathered))


def case_every_dtype_and_shape() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for shape in ((1,), (5,), (17, 3), (4, 5, 6), (700, 300), (0,)):
            tensors = [_drawn(rank, shape, dtype) for rank in range(hvd.size())]
            result = hvd.allreduce(tensors[hvd.rank()], op=hvd.Adasum, name=f"{dtype} {shape}")
            _expect(result, tensors)
            _same_everywhere(result)


def case_scaled_and_in_place() -> None:
    tensors = [_drawn(rank, (40,), torch.float32) for rank in range(hvd.size())]
    mine = tensors[hvd.rank()].clone()
    assert hvd.allreduce_(mine, op=hvd.Adasum, prescale_factor=2.0, postscale_factor=-0.25) is mine
    _expect(mine, tensors, -0.5)
    columns = tensors[hvd.rank()].view(8, 5).t()
    _expect(hvd.allreduce(columns, op=hvd.Adasum), [t.view(8, 5).t() for t in tensors])


def case_each_tensor_of_a_group_by_itself() -> None:
    shapes = [(30,), (7, 2), (1,)]
    tensors = [[_drawn(rank, shape, torch.float32) * 10**i for i, shape in enumerate(shapes)] for rank in range(4)]
    results = hvd.grouped_allreduce(tensors[hvd.rank()], op=hvd.Adasum, name="group")
    for i, result in enumerate(results):
        _expect(result, [tensors[rank][i] for rank in range(hvd.size())])


def case_parallel_ones_average_and_orthogonal_ones_add() -> None:
    same = torch.arange(1.0, 7.0)
    assert torch.allclose(hvd.allreduce(same, op=hvd.Adasum), same)
    own = torch.zeros(hvd.size())
    own[hvd.rank()] = hvd.rank() + 1.0
    assert torch.equal(hvd.allreduce(own, op=hvd.Adasum), torch.arange(1.0, hvd.size() + 1.0))
    only = own if hvd.rank() == 1 else torch.zeros(hvd.size())
    expected = torch.zeros(hvd.size())
    expected[1] = 2.0
    assert torch.equal(hvd.allreduce(only, op=hvd.Adasum), expected)


def case_a_nan_reaches_all() -> None:
    mine = torch.ones(5)
    if hvd.rank() == 0:
        mine[2] = float("nan")
    assert hvd.allreduce(mine, op=hvd.Adasum)[2].isnan()


def case_ranks_of_a_set() -> None:
    process_set = hvd.ProcessSet([rank for rank in range(hvd.size()) if rank != 1 or hvd.size() == 2])
    if process_set.included():
        tensors = [_drawn(rank, (50,), torch.float32) for rank in process_set.ranks]
        result = hvd.allreduce(tensors[process_set.rank()], op=hvd.Adasum, process_set=process_set)
        _expect(result, tensors)
        _same_everywhere(result, process_set)


def case_a_mismatch_is_told() -> None:
    op = hvd.Adasum if hvd.rank() == 0 else hvd.Average
    fails(lambda: hvd.allreduce(torch.ones(3), op=op, name="mixed"), hvd.HorovodInternalError, "adasum", "average")
    x = torch.ones(3, requires_grad=True)
    loss = hvd.allreduce(x, op=hvd.Adasum).sum()
    fails(loss.backward, NotImplementedError, "adasum")


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    draw = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(8, 6, generator=draw, dtype=torch.float64)
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), torch.randint(0, 3, (8,), generator=draw)).backward()
    optimizer.step()


def case_an_optimizer_combines_steps() -> None:
    """An optimizer with op=Adasum equals a simulation of all ranks in one process."""
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.01),
    ):
        model = _model()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), op=hvd.Adasum)
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert optimizer.committed
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
        copies = [_model() for _ in range(hvd.size())]
        plains = [make(one.parameters()) for one in copies]
        schedulers = [torch.optim.lr_scheduler.StepLR(plain, step_size=3, gamma=0.5) for plain in plains]
        for step in range(6):
            _step(model, optimizer, hvd.rank(), step)
            scheduler.step()
            before = [p.detach().clone() for p in copies[0].parameters()]
            for rank, (one, plain, its) in enumerate(zip(copies, plains, schedulers, strict=True)):
                _step(one, plain, rank, step)
                its.step()
            with torch.no_grad():
                for start, *ps in zip(before, *(one.parameters() for one in copies), strict=True):
                    value = start + adasum([p - start for p in ps])
                    for p in ps:
                        p.copy_(value)
        for p, q in zip(model.parameters(), copies[0].parameters(), strict=True):
            assert torch.allclose(p, q, rtol=1e-9, atol=1e-9), (p - q).abs().max()
            _same_everywhere(p)


def case_an_optimizer_with_casts_and_a_set() -> None:
    process_set = hvd.ProcessSet([0, hvd.size() - 1])
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        model = _model().float()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            compression=compression,
            op=hvd.Adasum,
            process_set=process_set,
        )
        alone = copy.deepcopy(model)
        plain = torch.optim.SGD(alone.parameters(), lr=0.1)
        draw = torch.Generator().manual_seed(hvd.rank())
        for _ in range(4):
            inputs = torch.randn(8, 6, generator=draw)
            for one, its in ((model, optimizer), (alone, plain)):
                its.zero_grad()
                one(inputs).square().mean().backward()
                its.step()
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            if process_set.included():
                _same_everywhere(p, process_set)
            else:
                assert torch.equal(p, q)


def case_what_does_not_fit_is_refused() -> None:
    model = _model()

    def make(**options: object) -> object:
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        return hvd.DistributedOptimizer(plain, model.named_parameters(), op=hvd.Adasum, **options)

    fails(lambda: make(compression="twobit"), NotImplementedError, "fp16")
    fails(lambda: make(sync="forward"), NotImplementedError, "sync")
    fails(lambda: make(local_updates=4), NotImplementedError, "local_updates")
    fails(lambda: make(gradient_predivide_factor=2.0), ValueError, "op=Average")
    old, new = make(), make()
    _step(model, new, hvd.rank(), 0)
    fails(old.step, RuntimeError, "made later")
