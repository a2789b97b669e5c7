# ruff: noqa: PT017  (no pytest on the ranks)
"""DistributedOptimizer on every rank against one process with the whole batch."""

from __future__ import annotations

import copy
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sirtaki
import sirtaki.torch as hvd
from ranks.torch.optimizer_support import (
    STEPS,
    Bomb,
    Branches,
    adamw,
    batch,
    close,
    compare,
    everything,
    expect_averages,
    goes_left,
    loss_of,
    make_model,
    mine,
    raises,
    same_on_all_ranks,
    sgd,
    sparse_model,
)


def case_sgd_equals_one_process_with_the_whole_batch() -> None:
    for sync in ("backward", "step"):
        compare(sgd, sync=sync)


def case_adamw_equals_one_process_with_the_whole_batch() -> None:
    for sync in ("backward", "step"):
        compare(adamw, sync=sync)


def case_predivide_gives_the_same_average() -> None:
    compare(sgd, gradient_predivide_factor=4.0)


def case_lbfgs_with_a_closure() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    for sync in ("backward", "step"):
        model, reference = make_model(), make_model()
        optimizer = hvd.DistributedOptimizer(make(model), model.named_parameters(), sync=sync)
        plain = make(reference)
        for step in range(2):
            for net, opt, part in ((model, optimizer, mine), (reference, plain, everything)):

                def closure(net=net, opt=opt, part=part, step=step, alone=net is reference) -> Tensor:  # noqa: ANN001
                    opt.zero_grad()
                    loss = loss_of(net, step, part)
                    loss.backward()
                    return loss.detach() if alone else hvd.allreduce(loss.detach())

                opt.step(closure)
        close(model, reference, 1e-9)


def case_lbfgs_decides_by_the_loss_of_all_ranks() -> None:
    """A line search compares losses: with those of single ranks it would take other steps on each."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters(), lr=2.0, max_iter=4, line_search_fn="strong_wolfe")

    for number in (False, True):
        model, reference = make_model(), make_model()
        optimizer = hvd.DistributedOptimizer(make(model), model.named_parameters())
        plain = make(reference)
        for step in range(2):
            for net, opt, part in ((model, optimizer, mine), (reference, plain, everything)):

                def closure(net=net, opt=opt, part=part, step=step, number=number):  # noqa: ANN001, ANN202
                    opt.zero_grad()
                    loss = loss_of(net, step, part)
                    loss.backward()
                    return loss.item() if number else loss

                assert isinstance(opt.step(closure), float if number else Tensor)
        close(model, reference, 1e-9)
        same_on_all_ranks(model.parameters())


def case_sum_is_the_sum() -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=hvd.Sum)
    model(torch.full((1, 3), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    grad = model.weight.grad
    assert grad is not None
    assert grad.tolist() == [[float(sum(range(1, hvd.size() + 1)))] * 3]


def case_fp16_and_bf16_travel_and_come_back() -> None:
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16, "fp16"):
        model = nn.Linear(4, 2)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), compression=compression)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.full((1, 4), hvd.rank() + 0.5)).sum().backward()
            optimizer.step()
        grad = model.weight.grad
        assert grad is not None
        mean = sum(r + 0.5 for r in range(hvd.size())) / hvd.size()
        assert torch.allclose(grad, torch.full((2, 4), mean), rtol=1e-2)
        same_on_all_ranks(model.parameters())


def case_same_as_ddp() -> None:
    """Against a plain average of the gradients, as DDP makes it, bit for bit in float32 on two ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
    reference = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, labels = batch(step)
        for net, opt in ((model, optimizer), (reference, plain)):
            opt.zero_grad()
            F.cross_entropy(net(mine(inputs.float())), mine(labels)).backward()
        for p in reference.parameters():
            hvd.allreduce_(p.grad)
        optimizer.step()
        plain.step()
    close(model, reference, 0.0 if hvd.size() == 2 else 1e-6)


def case_unused_parameters() -> None:
    for sync in ("backward", "step"):
        model = Branches()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters(), sync=sync
        )
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(1, 2), goes_left(step)).sum().backward()
            optimizer.step()
            expect_averages(model, step)


def case_a_rank_without_any_gradient_takes_part() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    for _ in range(3):
        optimizer.zero_grad()
        if hvd.rank() == 0:
            model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert model.weight.grad is not None
        assert torch.allclose(model.weight.grad, torch.full((1, 2), 1 / hvd.size()))


def case_accumulation_by_passes_and_by_no_sync() -> None:
    for sync in ("backward", "step"):
        for way in ("passes", "no_sync"):
            model, reference = make_model(), make_model()
            optimizer = hvd.DistributedOptimizer(
                sgd(model), model.named_parameters(), sync=sync, backward_passes_per_step=3 if way == "passes" else 1
            )
            plain = sgd(reference)
            for step in range(3):
                optimizer.zero_grad()
                plain.zero_grad()
                for part in range(3):
                    if way == "no_sync" and part < 2:
                        with optimizer.no_sync():
                            loss_of(model, 3 * step + part).backward()
                    else:
                        loss_of(model, 3 * step + part).backward()
                    loss_of(reference, 3 * step + part, everything).backward()
                optimizer.step()
                plain.step()
            close(model, reference)


def case_two_backwards_before_one_step() -> None:
    model, reference = make_model(), make_model()
    optimizer, plain = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), sync="backward"), sgd(reference)
    for step in range(3):
        for net, opt, part in ((model, optimizer, mine), (reference, plain, everything)):
            opt.zero_grad()
            loss_of(net, 2 * step, part).backward()
            loss_of(net, 2 * step + 1, part).backward()
            opt.step()
    close(model, reference)


def case_clipping_sees_combined_gradients() -> None:
    for sync in ("backward", "step"):
        model, reference = make_model(), make_model()
        optimizer, plain = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), sync=sync), sgd(reference)
        for step in range(STEPS):
            optimizer.zero_grad()
            plain.zero_grad()
            loss_of(model, step).backward()
            loss_of(reference, step, everything).backward()
            if sync == "step":
                optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
            if sync == "step":
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
            plain.step()
        close(model, reference)


def case_clipping_in_flight_is_refused() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), sync="step")
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    raises(optimizer.step, RuntimeError, "was changed")
    optimizer.zero_grad()
    loss_of(model, 3).backward()
    optimizer.step()


def case_gradscaler_skips_the_same_steps_on_all_ranks() -> None:
    model = nn.Linear(3, 2)
    hvd.broadcast_parameters(model.state_dict())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    scales = []
    for step in range(4):
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).sum()
        if step == 2 and hvd.rank() == hvd.size() - 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [4.0, 4.0, 2.0, 2.0]
    same_on_all_ranks(model.parameters())
    assert all(p.isfinite().all() for p in model.parameters())


def case_gradscaler_is_refused_while_gradients_travel() -> None:
    model = make_model().float()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), sync="step")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(torch.ones(1, 7)).sum()).backward()
    raises(lambda: scaler.step(optimizer), NotImplementedError, "synchronize()")
    optimizer.synchronize()


def case_sparse_gradients() -> None:
    for as_dense in (False, True):
        model, reference = sparse_model(), sparse_model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), sparse_as_dense=as_dense
        )
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(3):
            words = torch.randint(0, 10, (hvd.size(), 4, 2), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            plain.zero_grad()
            model(words[hvd.rank()]).square().mean().backward()
            reference(words.view(-1, 2)).square().mean().backward()
            optimizer.step()
            plain.step()
            assert model[0].weight.grad.is_sparse
        close(model, reference)


def case_channels_last_and_odd_layouts() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((1, 3, 5, 5), hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
        mean = sum(range(1, hvd.size() + 1)) / hvd.size()
        assert torch.allclose(model.weight.grad, torch.full((4, 3, 3, 3), 9 * mean))
    p = nn.Parameter(torch.zeros(3, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        (p.t() * torch.arange(6.0).view(2, 3)).sum().backward()
        optimizer.step()
        assert torch.equal(p.grad, torch.arange(6.0).view(2, 3).t())


def case_misuse_names_the_parameter() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), sync="step")
    optimizer.zero_grad()
    loss_of(model, 0).backward()
    raises(lambda: loss_of(model, 1).backward(), RuntimeError, "4.bias")
    raises(optimizer.zero_grad, RuntimeError, "zero_grad")
    # The second backward has added to a gradient that was in flight.
    raises(optimizer.step, RuntimeError, "4.bias")
    optimizer.zero_grad()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss_of(model, 1).backward()
        optimizer.synchronize()
        optimizer.step()
    assert any("skip_synchronize" in str(w.message) for w in caught)


def case_exception_in_backward_does_not_poison_the_job() -> None:
    for sync in ("backward", "step"):
        model, reference = make_model(), make_model()
        optimizer, plain = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), sync=sync), sgd(reference)
        for step in range(4):
            optimizer.zero_grad()
            if step == 2:
                try:
                    if hvd.rank() == 0:
                        inputs, labels = batch(step)
                        hidden = Bomb.apply(model[:2](mine(inputs)))
                        F.cross_entropy(model[2:](hidden), mine(labels)).backward()
                    else:
                        loss_of(model, step).backward()
                        optimizer.synchronize()
                    raise AssertionError("no error")
                except ArithmeticError:
                    pass
                except sirtaki.AbortedError as error:
                    assert "rank 0" in str(error)
                continue
            plain.zero_grad()
            loss_of(model, step).backward()
            loss_of(reference, step, everything).backward()
            optimizer.step()
            plain.step()
        close(model, reference)


def case_named_parameters_are_checked() -> None:
    model = make_model()
    named = list(model.named_parameters())
    raises(lambda: hvd.DistributedOptimizer(sgd(model), named[:-1]), ValueError, "lacks 1")
    raises(lambda: hvd.DistributedOptimizer(sgd(model), [("a", p) for _, p in named]), ValueError, "more than once")
    raises(lambda: hvd.DistributedOptimizer(sgd(model), [p for _, p in named]), ValueError, "pairs")
    raises(lambda: hvd.DistributedOptimizer(sgd(model), named, op=hvd.Min), ValueError, "Average, Sum or Adasum")
    raises(lambda: hvd.DistributedOptimizer(sgd(model), named, sync="never"), ValueError, "never")
    raises(lambda: hvd.DistributedOptimizer(sgd(model), named, compression="zip"), ValueError, "zip")
    optimizer = hvd.DistributedOptimizer(sgd(model), named)
    raises(lambda: hvd.DistributedOptimizer(optimizer, named), ValueError, "already")


def case_it_stays_the_users_optimizer() -> None:
    model = make_model()
    plain = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    calls: list[str] = []
    plain.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert isinstance(optimizer, torch.optim.AdamW)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            scheduler.step()
    assert calls == ["pre", "pre"]
    assert optimizer.param_groups[0]["lr"] == 0.025
    same_on_all_ranks(model.parameters())
    other = torch.optim.AdamW(make_model(1).parameters(), lr=1.0)
    other.load_state_dict(optimizer.state_dict())
    optimizer.load_state_dict(other.state_dict())
    optimizer.zero_grad()
    loss_of(model, 3).backward()
    optimizer.step()
    assert calls == ["pre"] * 3
    assert optimizer.exposed_seconds >= 0.0


def case_state_dict_does_not_communicate() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(adamw(model), model.named_parameters())
    loss_of(model, 0).backward()
    optimizer.step()
    if hvd.rank() == 0:
        assert optimizer.state_dict()["state"]
    hvd.barrier()


def case_added_and_frozen_parameters() -> None:
    model, extra = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": extra.parameters()})
        optimizer.zero_grad()
        extra(model(torch.full((1, 2), hvd.rank() + 1.0))).sum().backward()
        if step < 2:
            extra.zero_grad()
        optimizer.step()
    same_on_all_ranks([extra.weight.grad, model.weight.grad])
    model.weight.requires_grad_(False)
    optimizer.zero_grad()
    extra(model(torch.full((1, 2), hvd.rank() + 1.0))).sum().backward()
    optimizer.step()
    assert model.weight.grad is None
    same_on_all_ranks([extra.weight.grad])


def case_two_optimizers_in_different_orders() -> None:
    first, second = make_model(1), make_model(2)
    one = hvd.DistributedOptimizer(sgd(first), first.named_parameters())
    two = hvd.DistributedOptimizer(sgd(second), second.named_parameters())
    for step in range(4):
        one.zero_grad()
        two.zero_grad()
        (loss_of(first, step) + loss_of(second, step)).backward()
        one.step()
        two.step()
    same_on_all_ranks([*first.parameters(), *second.parameters()])


def case_reentrant_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (True, False):
        model, reference = make_model(), make_model()
        optimizer, plain = hvd.DistributedOptimizer(sgd(model), model.named_parameters()), sgd(reference)
        for step in range(3):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            plain.zero_grad()
            hidden = model[:2](mine(inputs))
            outputs = checkpoint(model[2:], hidden, use_reentrant=reentrant)
            F.cross_entropy(outputs, mine(labels)).backward()
            loss_of(reference, step, everything).backward()
            optimizer.step()
            plain.step()
        close(model, reference)


def case_models_that_differ_between_ranks_fail_with_names() -> None:
    model = nn.Linear(3, 2 + (hvd.rank() == 0))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())

    def backward() -> None:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.synchronize()

    raises(backward, hvd.HorovodInternalError, "weight")
    hvd.barrier()
