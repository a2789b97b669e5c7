"""accelerate() on DistributedDataParallel: results are those of DistributedOptimizer and of the model without it."""

from __future__ import annotations

import copy
import functools
import gc

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import sirtaki
import sirtaki.torch as hvd
from ranks.torch_distributed.ddp_support import (
    CODECS,
    STEPS,
    TOPK,
    TWOBIT,
    accelerated,
    branches,
    equal,
    equal_on_all,
    loss_of,
    net,
    same_as,
    sgd,
    start,
    step_with,
    train,
    with_distributed_optimizer,
    wrapped,
)
from sirtaki.torch._ddp.loaded_states import loaded_states
from sirtaki.torch.ddp import accelerate


def codecs_of(handle: object) -> set[str]:
    return {row["codec"] for row in handle.compression_report()}


def case_codecs_give_the_results_of_distributed_optimizer() -> None:
    start()
    for codec in ("none", *CODECS):
        model, optimizer, handle = accelerated(codec)
        train(model, optimizer)
        assert model._get_ddp_logging_data().get("has_rebuilt_buckets") == 1
        assert codec == "none" or codec.partition(":")[0] in codecs_of(handle), codec
        equal(model.module, train(*with_distributed_optimizer(codec)))
        assert handle.exposed_seconds > 0
        assert optimizer.exposed_seconds == handle.exposed_seconds


def case_dense_gradients_are_those_of_the_model_without_it() -> None:
    variants = [
        {},
        {"bucket_cap_mb": 25},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"static_graph": True, "gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
    ]
    for options in variants:
        model, optimizer, _ = accelerated("none", **options)
        plain = wrapped(**options)
        train(model, optimizer)
        train(plain, sgd(plain))
        same_as(plain, model, options)


def case_codecs_with_every_kind_of_bucket() -> None:
    wanted = train(*with_distributed_optimizer(TWOBIT))
    for options in (
        {"bucket_cap_mb": 25},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    ):
        model, optimizer, _ = accelerated(TWOBIT, **options)
        equal(train(model, optimizer).module, wanted)


def case_without_an_optimizer() -> None:
    model = wrapped()
    handle = accelerate(model, compression=TWOBIT)
    train(model, sgd(model))
    equal(model.module, train(*with_distributed_optimizer(TWOBIT)))
    assert "twobit" in codecs_of(handle)
    assert handle.state_dict()["sirtaki"]["owed"]
    assert handle.local_stats() == {}
    with handle.synchronous(), handle.global_model():
        handle.drain()


def case_the_default_is_auto() -> None:
    model = wrapped()
    handle = accelerate(model, sgd(model))
    step_with(model, sgd(model), 0)
    step_with(model, sgd(model), 1)
    assert handle._reducer.options.codec == "auto"
    assert all(row["reason"] for row in handle.compression_report())


def case_no_sync_accumulates() -> None:
    for codec in ("none", TWOBIT):
        model, optimizer, _ = accelerated(codec)
        other, reference = with_distributed_optimizer(codec)
        for step in range(4):
            optimizer.zero_grad()
            with model.no_sync():
                loss_of(model, 2 * step).backward()
            loss_of(model, 2 * step + 1).backward()
            optimizer.step()
            reference.zero_grad()
            with reference.no_sync():
                loss_of(other, 2 * step).backward()
            loss_of(other, 2 * step + 1).backward()
            reference.step()
        equal(model.module, other)


def case_parameters_that_some_ranks_or_none_use() -> None:
    last = dist.get_world_size() - 1

    def used(step: int) -> tuple[str, ...]:
        if step % 3 == 1:
            return ("left",)  # no rank uses the right head
        return ("left", "right") if step % 3 == 0 or dist.get_rank() == last else ("left",)

    for codec in ("none", TWOBIT, TOPK):
        model, optimizer, handle = accelerated(codec, branches, find_unused_parameters=True)
        other, reference = with_distributed_optimizer(codec, branches)
        for step in range(6):
            for one, made in ((model, optimizer), (other, reference)):
                made.zero_grad()
                rows = torch.full((2, 8), 1.0 + step + dist.get_rank())
                one(rows, used(step)).square().mean().backward()
                made.step()
            if step % 3 == 1:
                assert model.module.right.weight.grad is None
        equal(model.module, other)
        equal_on_all(model)
        ours, theirs = ({row["name"]: row["owed_norm"] for row in r.compression_report()} for r in (handle, reference))
        assert ours == theirs, codec


def case_join_of_uneven_batches() -> None:
    for codec in ("none", TWOBIT):
        model, optimizer, _ = accelerated(codec)
        # A rank without data has a gradient of zeros.
        other, reference = with_distributed_optimizer(codec)
        mine = 2 + dist.get_rank()
        with model.join():
            for step in range(mine):
                step_with(model, optimizer, step)
        for step in range(1 + dist.get_world_size()):
            reference.zero_grad()
            (loss_of(other, step) * (1.0 if step < mine else 0.0)).backward()
            reference.step()
        equal(model.module, other)
        equal_on_all(model)


def case_several_models_in_one_backward() -> None:
    """Ranks reach the models in different orders, and no hook waits."""
    made = [accelerated(codec, net) for codec in (TWOBIT, "none", "int8:wire=gather")]
    others = [with_distributed_optimizer(codec, net) for codec in (TWOBIT, "none", "int8:wire=gather")]
    for step in range(STEPS):
        for models in (made, others):
            for _, optimizer, *_ in models:
                optimizer.zero_grad()
            order = models if dist.get_rank() % 2 == 0 else models[::-1]
            losses = [loss_of(model, step) for model, *_ in order]
            sum(losses).backward()
            for _, optimizer, *_ in models:
                optimizer.step()
    for (model, *_), (other, _) in zip(made, others, strict=True):
        equal(model.module, other)


def case_several_models_with_one_optimizer() -> None:
    def chained(models: list[nn.Module], optimizer: torch.optim.Optimizer) -> None:
        for step in range(STEPS):
            optimizer.zero_grad()
            sum(loss_of(model, step + i) for i, model in enumerate(models)).backward()
            optimizer.step()

    models = [wrapped(), wrapped()]
    optimizer = torch.optim.SGD([*models[0].parameters(), *models[1].parameters()], lr=0.1)
    handles = [accelerate(model, optimizer, compression=TWOBIT) for model in models]
    chained(models, optimizer)
    others = [net(), net()]
    plain = torch.optim.SGD([*others[0].parameters(), *others[1].parameters()], lr=0.1)
    named = [(f"{i}.{name}", p) for i, other in enumerate(others) for name, p in other.named_parameters()]
    chained(others, hvd.DistributedOptimizer(plain, named, compression=TWOBIT))
    for model, other, handle in zip(models, others, handles, strict=True):
        equal(model.module, other)
        assert "twobit" in codecs_of(handle)


def two_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    params = [p for _, p in sorted(model.named_parameters(), key=lambda pair: pair[1].dim())]
    return [torch.optim.AdamW(params[:3], lr=0.01), torch.optim.SGD(params[3:], lr=0.1, momentum=0.9)]


def train_both(model: nn.Module, optimizers: list[torch.optim.Optimizer], steps: range) -> nn.Module:
    for step in steps:
        model.zero_grad()
        loss_of(model, step).backward()
        for optimizer in optimizers:
            optimizer.step()
    return model


def case_several_optimizers_of_one_model() -> None:
    for codec in ("none", *CODECS):
        model = wrapped()
        optimizers = two_optimizers(model)
        handle = accelerate(model, optimizers, compression=codec)
        train_both(model, optimizers, range(4))
        saved = copy.deepcopy([model.state_dict(), handle.state_dict(), *(one.state_dict() for one in optimizers)])
        train_both(model, optimizers, range(4, 8))
        other = net()
        named = list(other.named_parameters())
        references = [hvd.DistributedOptimizer(one, named, compression=codec) for one in two_optimizers(other)]
        equal(model.module, train_both(other, references, range(8)))
        assert len(handle.compression_report()) == len(named)
        assert sum(len(one.compression_report()) for one in optimizers) == len(named)

        for by_handle in (False, True):
            again = wrapped()
            resumed = two_optimizers(again)
            of_again = accelerate(again, resumed, compression=codec)
            again.load_state_dict(saved[0])
            for one, state in zip(resumed, copy.deepcopy(saved[2:]), strict=True):
                one.load_state_dict({k: v for k, v in state.items() if k != "sirtaki"} if by_handle else state)
            if by_handle:
                of_again.load_state_dict(saved[1])
            equal(train_both(again, resumed, range(4, 8)), model)


def case_a_static_graph_with_unused_parameters() -> None:
    for codec in ("none", TWOBIT):
        model, optimizer, _ = accelerated(codec, branches, static_graph=True)
        other, reference = with_distributed_optimizer(codec, branches)
        for step in range(STEPS):
            for one, made in ((model, optimizer), (other, reference)):
                made.zero_grad()
                one(torch.full((2, 8), 1.0 + step + dist.get_rank()), ("left",)).square().mean().backward()
                made.step()
        equal(model.module, other)


def case_checkpointed_activations() -> None:
    class Recomputed(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.inner, self.reentrant = net(), reentrant

        def forward(self, rows: Tensor) -> Tensor:
            rows = rows.requires_grad_()
            return checkpoint(self.inner, rows, use_reentrant=self.reentrant)

    for reentrant in (False, True):
        for static in (False, True):
            model, optimizer, _ = accelerated(TWOBIT, functools.partial(Recomputed, reentrant), static_graph=static)
            train(model, optimizer)
            equal(model.module.inner, train(*with_distributed_optimizer(TWOBIT)))


def case_halves_and_doubles() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):

        def made(dtype: torch.dtype = dtype) -> nn.Module:
            return net().to(dtype)

        model, optimizer, _ = accelerated(TWOBIT, made)
        equal(train(model, optimizer).module, train(*with_distributed_optimizer(TWOBIT, made)))
        assert next(model.parameters()).dtype is dtype


def case_grad_scaler_and_clipping() -> None:
    def scaled(model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(STEPS):
            optimizer.zero_grad()
            # The gradients of one rank overflow in one step, which all ranks skip.
            loss = loss_of(model, step) * (float("inf") if step == 2 and dist.get_rank() == 0 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 512.0
        return model

    for codec in ("none", "int8:wire=gather,ef=off"):
        model, optimizer, _ = accelerated(codec)
        equal(scaled(model, optimizer).module, scaled(*with_distributed_optimizer(codec)))


def case_sparse_and_dense_gradients() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10, 8, sparse=True)
            self.dense = nn.Linear(8, 400)

        def forward(self, numbers: Tensor) -> Tensor:
            return self.dense(self.words(numbers))

    def made() -> nn.Module:
        torch.manual_seed(3)
        return Words()

    def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    model, optimizer, _ = accelerated(TWOBIT, made, plain_sgd)
    other, reference = with_distributed_optimizer(TWOBIT, made, plain_sgd)
    for step in range(3):
        for one, with_it in ((model, optimizer), (other, reference)):
            with_it.zero_grad()
            one(torch.tensor([0, dist.get_rank() + 1, step])).square().mean().backward()
            with_it.step()
    equal(model.module, other)


def case_momentum_correction() -> None:
    codec = f"{TOPK},momentum=0.9"
    model, optimizer, handle = accelerated(codec)
    equal(train(model, optimizer).module, train(*with_distributed_optimizer(codec)))
    assert any(row["momentum"] > 0 for row in handle.compression_report())


def case_checkpoints_hold_residuals() -> None:
    for codec in (TWOBIT, "powersgd:rank=2"):
        model, optimizer, handle = accelerated(codec)
        train(model, optimizer, range(4))
        weights = {name: value.clone() for name, value in model.module.state_dict().items()}
        saved = copy.deepcopy(optimizer.state_dict())
        assert saved["sirtaki"]["owed"].keys() == handle.state_dict()["sirtaki"]["owed"].keys()
        train(model, optimizer, range(4, 8))

        again, resumed, _ = accelerated(codec)
        again.module.load_state_dict(weights)
        resumed.load_state_dict(copy.deepcopy(saved))
        equal(train(again, resumed, range(4, 8)), model)

        # Without an optimizer the handle has the residuals.
        third = wrapped()
        third.module.load_state_dict(weights)
        plain = sgd(third)
        plain.load_state_dict({key: saved[key] for key in ("state", "param_groups")})
        accelerate(third, compression=codec).load_state_dict({"sirtaki": saved["sirtaki"]})
        equal(train(third, plain, range(4, 8)), model)


def case_one_rank_saves_the_residuals_of_all() -> None:
    """The state is loaded before accelerate(), as trainers do."""
    loaded_states.watch()
    model, optimizer, handle = accelerated(TWOBIT)
    train(model, optimizer, range(4))
    own = handle.state_dict()["sirtaki"]["owed"]
    handle.prepare_checkpoint()
    kept = [copy.deepcopy((model.module.state_dict(), optimizer.state_dict()))]
    assert kept[0][1]["sirtaki"]["owed"].keys() == own.keys() == handle.state_dict()["sirtaki"]["owed"].keys()
    for name, total in kept[0][1]["sirtaki"]["owed"].items():
        torch.testing.assert_close(total, hvd.allreduce(own[name], op=hvd.Sum))
    train(model, optimizer, range(4, 5))
    assert optimizer.state_dict()["sirtaki"]["rank"] == dist.get_rank(), "after a step the residuals are its own again"

    dist.broadcast_object_list(kept)
    again = wrapped()
    again.module.load_state_dict(kept[0][0])
    resumed = sgd(again)
    resumed.load_state_dict(kept[0][1])
    accelerate(again, resumed, compression=TWOBIT)
    resumed.prepare_checkpoint()
    before = resumed.state_dict()["sirtaki"]
    assert before.keys() == kept[0][1]["sirtaki"].keys(), "a checkpoint before the first step has them"
    train(again, resumed, range(4, 5))
    equal_on_all(again)
    for p, q in zip(again.module.parameters(), model.module.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=0.05, rtol=0.1)


def case_checkpoints_of_torch_hold_residuals() -> None:
    model, optimizer, _ = accelerated(TWOBIT)
    train(model, optimizer, range(4))
    saved = copy.deepcopy(get_state_dict(model, optimizer))
    train(model, optimizer, range(4, 8))
    again, resumed, _ = accelerated(TWOBIT)
    set_state_dict(again, resumed, model_state_dict=saved[0], optim_state_dict=saved[1])
    equal(train(again, resumed, range(4, 8)), model)


def case_flush_applies_residuals() -> None:
    model, optimizer, handle = accelerated(TWOBIT)
    train(model, optimizer)
    optimizer.flush()
    other, reference = with_distributed_optimizer(TWOBIT)
    train(other, reference)
    reference.flush()
    equal(model.module, other)
    assert all(row["owed_norm"] == 0 for row in handle.compression_report())


def case_groups_of_gloo_and_of_some_ranks() -> None:
    gloo = dist.new_group(backend="gloo")
    wanted = train(*with_distributed_optimizer(TWOBIT))
    model, optimizer, _ = accelerated(TWOBIT, process_group=gloo)
    equal(train(model, optimizer).module, wanted)

    pair = [0, dist.get_world_size() - 1]
    for backend in ("gloo", "sirtaki"):
        group = dist.new_group(pair, backend=backend)
        if dist.get_rank() in pair:
            model, optimizer, _ = accelerated(TWOBIT, process_group=group)
            train(model, optimizer)
            flat = torch.cat([p.detach().flatten() for p in model.parameters()])
            gathered = hvd.allgather(flat[None], process_set=hvd.ProcessSet(pair))
            assert torch.equal(gathered[0], gathered[1])
            other = net()
            reference = hvd.DistributedOptimizer(
                sgd(other), other.named_parameters(), compression=TWOBIT, process_set=hvd.ProcessSet(pair)
            )
            equal(train(other, reference), model.module)
    hvd.barrier()


def case_a_plain_model_is_trained_by_distributed_optimizer() -> None:
    model = net()
    if dist.get_rank() > 0:
        with torch.no_grad():
            model[0].weight.zero_()
    optimizer = sgd(model)
    handle = accelerate(model, optimizer, compression=TWOBIT)
    equal(train(model, optimizer), train(*with_distributed_optimizer(TWOBIT)))
    assert "twobit" in codecs_of(handle)


def case_remove_leaves_gradients_to_the_process_group() -> None:
    model, optimizer, handle = accelerated(TWOBIT)
    train(model, optimizer, range(2))
    handle.remove()
    plain = wrapped()
    plain.module.load_state_dict(model.module.state_dict())
    loss_of(model, 7).backward()
    optimizer.zero_grad()
    loss_of(model, 8).backward()
    loss_of(plain, 8).backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad)


def case_models_that_go_close_their_streams() -> None:
    before = set(hvd_streams())
    model, optimizer, handle = accelerated(TWOBIT)
    train(model, optimizer, range(2))
    assert set(hvd_streams()) > before
    del model, optimizer, handle
    assert set(hvd_streams()) == before


def hvd_streams() -> list[str]:
    gc.collect()
    return list(sirtaki.basics.stats()["tensors"])


def case_a_compiled_model() -> None:
    for compile_inside in (False, True):
        torch._dynamo.reset()
        model = DistributedDataParallel(torch.compile(net(), backend="aot_eager") if compile_inside else net())
        optimizer = sgd(model)
        compiled = model if compile_inside else torch.compile(model, backend="aot_eager")
        accelerate(compiled, optimizer, compression=TWOBIT)
        train(compiled, optimizer)
        wanted = train(*with_distributed_optimizer(TWOBIT))
        for p, q in zip(model.parameters(), wanted.parameters(), strict=True):
            assert torch.allclose(p, q, atol=1e-5)
        equal_on_all(model)
