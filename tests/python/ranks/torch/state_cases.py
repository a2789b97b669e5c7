# ruff: noqa: PT017  (no pytest on the ranks)
"""Optimizer state of one rank, broadcast to all with its types; optimizers of classes that trainers derive."""

from __future__ import annotations

import gc
import itertools
import time
import warnings
from collections import OrderedDict, deque
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import sirtaki.torch as hvd


def _model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    # The layers have no bias, because Muon takes matrices only.
    how = {"bias": False, "dtype": dtype, "device": "cpu"}
    return nn.Sequential(nn.Linear(4, 6, **how), nn.Linear(6, 4, **how))


def _train(model: nn.Module, optimizer: Any, seed: int) -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)).to(next(model.parameters()).dtype)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
        return
    closure()
    optimizer.step()


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Returns the leaves of a state by path; a path includes the types of the containers."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple, deque)):
        items = enumerate(value)
    else:
        return {path: value}
    return {k: v for key, item in items for k, v in _flat(item, f"{path}.{key}<{type(value).__name__}>").items()}


def _same_on_all(state: dict[str, Any]) -> None:
    mine = _flat(state)
    assert mine
    for other in hvd.allgather_object(mine):
        assert mine.keys() == other.keys(), mine.keys() ^ other.keys()
        for key, value in mine.items():
            assert type(value) is type(other[key]), key
            if isinstance(value, Tensor):
                assert value.dtype is other[key].dtype, (key, value.dtype, other[key].dtype)
                assert torch.equal(value, other[key]), key
            else:
                assert value == other[key], (key, value, other[key])


def _classes() -> list[type[torch.optim.Optimizer]]:
    found = [c for c in vars(torch.optim).values() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)]
    return sorted(set(found) - {torch.optim.Optimizer, torch.optim.SparseAdam}, key=lambda c: c.__name__)


def case_a_loaded_checkpoint_reaches_ranks_without_state() -> None:
    kinds = _classes()
    assert {c.__name__ for c in kinds} >= {"Adam", "AdamW", "LBFGS", "Rprop", "SGD"}
    for kind, distributed in itertools.product(kinds, (False, True)):
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        model = _model()
        trained = kind(model.parameters(), lr=0.01, **options)
        for seed in range(2):
            _train(model, trained, seed)
        fresh = _model()
        optimizer: Any = kind(fresh.parameters(), lr=0.01 if hvd.rank() == 0 else 0.5, **options)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer, fresh.named_parameters())
        if hvd.rank() == 0:
            fresh.load_state_dict(model.state_dict())
            optimizer.load_state_dict(trained.state_dict())
        hvd.broadcast_parameters(fresh.state_dict())
        hvd.broadcast_optimizer_state(optimizer)
        _same_on_all(optimizer.state_dict())
        assert optimizer.param_groups[0]["lr"] == 0.01
        assert len(optimizer.state) == len(trained.state) > 0, kind
        _train(fresh, optimizer, 2)
        _same_on_all({**optimizer.state_dict(), "model": fresh.state_dict()} if distributed else fresh.state_dict())


def case_sparse_adam_gets_its_state() -> None:
    table = nn.Embedding(6, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    if hvd.rank() == 0:
        table(torch.tensor([1, 2, 2])).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(hvd.DistributedOptimizer(optimizer))
    _same_on_all(optimizer.state_dict())


def case_state_keeps_its_types() -> None:
    model = _model(torch.bfloat16)
    # Adafactor and others keep float32 state for bfloat16 parameters; Adam does if the program puts it there.
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    _train(model, optimizer, 0)
    for p in model.parameters():
        moments = torch.rand(p.shape, generator=torch.Generator().manual_seed(hvd.rank()))
        optimizer.state[p]["exp_avg"] = moments
        optimizer.state[p]["odd"] = torch.rand(3, 2).t()
    hvd.broadcast_optimizer_state(optimizer)
    for p in model.parameters():
        assert optimizer.state[p]["exp_avg"].dtype is torch.float32
    _same_on_all(optimizer.state_dict())


class _Pair(NamedTuple):
    mean: Tensor
    count: int


class _Keeper(torch.optim.SGD):
    """An optimizer with state in many kinds of containers."""

    def remember(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    "pair": _Pair(torch.rand(2), 3),
                    "ordered": OrderedDict(b=torch.rand(1), a="text"),
                    "window": deque([torch.rand(1)], maxlen=4),
                    "nested": [(torch.rand(2),), None, {"complex": torch.ones(2, dtype=torch.complex64)}],
                }


def case_containers_keep_their_types() -> None:
    model = _model()
    optimizer = _Keeper(model.parameters(), lr=0.1)
    torch.manual_seed(hvd.rank())
    if hvd.rank() == 0:
        optimizer.remember()
    hvd.broadcast_optimizer_state(optimizer)
    _same_on_all(optimizer.state_dict())
    first = optimizer.state[next(model.parameters())]
    assert type(first["pair"]) is _Pair
    assert first["window"].maxlen == 4


class _OwnLoad(torch.optim.SGD):
    """An optimizer with its own load_state_dict()."""

    loaded = 0

    def load_state_dict(self, state_dict: Any) -> None:
        self.loaded += 1
        super().load_state_dict(state_dict)


def case_an_optimizer_that_loads_in_its_own_way_does_so() -> None:
    optimizer = _OwnLoad(_model().parameters(), lr=0.1 * (hvd.rank() + 1))
    hvd.broadcast_optimizer_state(optimizer)
    assert optimizer.loaded == (hvd.rank() > 0)
    assert optimizer.param_groups[0]["lr"] == 0.1


def case_other_groups_are_refused() -> None:
    params = list(_model().parameters())
    groups = [params] if hvd.rank() == 0 else [params[:1], params[1:]]
    optimizer = torch.optim.SGD([{"params": group} for group in groups], lr=0.1)
    try:
        hvd.broadcast_optimizer_state(optimizer)
    except ValueError as error:
        assert "[1, 1]" in str(error)
        assert "[2]" in str(error)
    else:
        assert hvd.rank() == 0


# ---- classes derived from the one that DistributedOptimizer() makes ----


def _derived(optimizer: Any) -> Any:
    """Returns another object that shares all attributes, as the manual optimization of Lightning makes."""
    kind = type(optimizer)
    twin = object.__new__(type(f"Lightning{kind.__name__}", (kind,), {}))
    twin.__dict__ = dict(optimizer.__dict__)
    return twin


def case_derived_classes_do_what_theirs_do() -> None:
    for how in ({}, {"op": hvd.Adasum}, {"sync": "step"}):
        model = _model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **how)
        twin = _derived(optimizer)
        for seed in range(2):
            _train(model, twin, hvd.rank() + seed)
        twin.load_state_dict(twin.state_dict())
        twin.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
        # The twin is deleted first; the optimizer must keep its stream and its hooks.
        del twin
        assert hvd.Adasum in how.values() or optimizer._sirtaki._hooks
        _train(model, optimizer, hvd.rank() + 2)
        _same_on_all(model.state_dict())


def case_parameters_have_names() -> None:
    model = _model()
    model[0].weight.requires_grad_(False)
    for how in ({}, {"op": hvd.Adasum}):
        named = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **how)
        assert named._parameter_names == {model[0].weight: "0.weight", model[1].weight: "1.weight"}
    unnamed = hvd.DistributedOptimizer(torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1))
    names = set(unnamed._parameter_names.values())
    assert len(names) == 2
    assert all(other == names for other in hvd.allgather_object(names))
    more = nn.Parameter(torch.zeros(2))
    unnamed.add_param_group({"params": [more]})
    assert more in unnamed._parameter_names


# ---- sparse gradients ----


def case_sparse_as_dense_gives_the_optimizer_sparse_gradients() -> None:
    for sync, as_dense in itertools.product(("backward", "step", "forward"), (False, True)):
        torch.manual_seed(0)
        table, reference = nn.Embedding(8, 3, sparse=True), nn.Embedding(8, 3, sparse=True)
        hvd.broadcast_parameters(table.state_dict())
        reference.load_state_dict(table.state_dict())
        adam = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(adam, sparse_as_dense=as_dense, sync=sync)
        plain = torch.optim.SparseAdam(reference.parameters(), lr=0.1)
        for step in range(3):
            rows = torch.randint(0, 6, (hvd.size(), 4), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            plain.zero_grad()
            # In each step one rank has no gradient.
            if hvd.rank() != step:
                table(rows[hvd.rank()]).square().sum().backward()
            used = [rows[rank] for rank in range(hvd.size()) if rank != step]
            (reference(torch.cat(used)).square().sum() / hvd.size()).backward()
            optimizer.step()
            plain.step()
        optimizer.wait()
        assert table.weight.grad is None or table.weight.grad.is_sparse
        assert torch.allclose(table.weight, reference.weight, atol=1e-6), (sync, as_dense)


# ---- parameters that are parts of others ----


def case_parts_of_parameters_are_refused_at_once() -> None:
    flat = nn.Parameter(torch.zeros(4))
    flat._fsdp_flattened = True
    sharded = nn.Parameter(torch.zeros(4))
    sharded._local_tensor = torch.zeros(2)
    for param, how in itertools.product((flat, sharded), ({}, {"op": hvd.Adasum})):
        try:
            hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.1), [("part", param)], **how)
        except NotImplementedError as error:
            assert "part" in str(error)
            assert "FSDP" in str(error)
            assert len(str(error).splitlines()) == 1
        else:
            raise AssertionError("no error")


def case_forward_leaves_everything_as_it_found_it() -> None:
    def found() -> tuple[Any, ...]:
        hooks = torch.nn.modules.module._global_forward_pre_hooks
        return dict(vars(nn.Module)), list(warnings.filters), dict(hooks)

    gc.collect()
    before = found()
    model = _model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), sync="forward")
    assert found() != before
    _train(model, optimizer, hvd.rank())
    optimizer.wait()
    del optimizer
    assert found() == before


def case_an_optimizer_that_goes_waits_for_nobody() -> None:
    """The optimizer of rank 0 is deleted before the others reach the step; its pending updates are applied then."""
    for sync in ("backward", "step", "forward"):
        model, reference = _model(), _model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), sync=sync)
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        for seed in range(2):
            _train(model, optimizer, seed)
            _train(reference, plain, seed)
        late = sync != "backward" and hvd.rank() > 0
        if late:
            hvd.barrier()
        x = torch.ones(2, 4)
        model(x).square().mean().backward()
        reference(x).square().mean().backward()
        if sync != "step":
            optimizer.step()
            plain.step()
        begin = time.monotonic()
        del optimizer
        assert time.monotonic() - begin < 10
        if not late and sync != "backward":
            hvd.barrier()
        if sync == "step":
            continue  # the step was never made
        for p, other in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(p, other, atol=1e-6), sync
        hvd.barrier()


# ---- defaults of the program ----


def _use_everything(how: dict[str, Any]) -> None:
    model = _model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **how)
    weight = next(model.parameters())
    x = weight.new_ones(3, 4)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    if "local_updates" in how:
        optimizer.drain()
    if how.get("op") is not hvd.Adasum:
        hvd.broadcast_optimizer_state(optimizer)
        _same_on_all(optimizer.state_dict()["state"])
    assert all(p.device.type == "cpu" and p.dtype is torch.float32 for p in model.parameters())


def case_default_device_and_type_are_the_programs() -> None:
    """The default device is "meta", as there may be no GPU: a tensor without an explicit device has no values."""
    size = hvd.size()
    mine = torch.ones(size, dtype=torch.float32, requires_grad=True)
    table = nn.Embedding(5, 3, sparse=True)
    hvd.broadcast_parameters(table.state_dict())
    norm = hvd.SyncBatchNorm(3)
    for default in ("device", "type"):
        if default == "device":
            torch.set_default_device("meta")
        else:
            torch.set_default_dtype(torch.float64)
        try:
            assert hvd.broadcast_object(hvd.rank(), 0) == 0
            assert hvd.allgather_object(hvd.rank()) == list(range(size))
            assert hvd.alltoall(mine, [1] * size)[1].tolist() == [1] * size
            for operation in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
                operation(mine).sum().backward()
            rows = mine.detach().view(size, 1).expand(size, 3)
            norm(rows * hvd.rank()).sum().backward()
            sampler = hvd.elastic.ElasticSampler(range(9))
            assert len(list(sampler)) == sampler.num_samples
            for as_dense in (False, True):
                optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), 0.1), sparse_as_dense=as_dense)
                table(mine.detach().long()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            _use_everything({})
            _use_everything({"sync": "forward"})
            _use_everything({"op": hvd.Adasum})
            _use_everything({"compression": "group_topk:rate=0.5"})
            _use_everything({"local_updates": 2})
        finally:
            torch.set_default_device(None)
            torch.set_default_dtype(torch.float32)
