"""Mistakes around accelerate(), and failures inside backward(): one line on every rank."""

from __future__ import annotations

import copy
import functools
import logging
import pickle
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import sirtaki.torch as hvd
from ranks.error_cases import fails
from ranks.torch_distributed.ddp_support import (
    SEED,
    TWOBIT,
    accelerated,
    equal_on_all,
    loss_of,
    net,
    sgd,
    start,
    step_with,
    train,
    with_distributed_optimizer,
    wrapped,
)
from sirtaki.torch.ddp import accelerate

BOTH_COMBINE = (
    "both combine its gradients: give sirtaki.torch.ddp.accelerate() the wrapped model and the plain optimizer",
    "or call the plain model",
)


def case_a_second_hook() -> None:
    start()
    model = wrapped()
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    fails(lambda: accelerate(model), ValueError, "communication hook already")
    model, optimizer, handle = accelerated(TWOBIT)
    train(model, optimizer, range(2))
    fails(lambda: accelerate(model, optimizer), ValueError, "communication hook already", "the second accelerate()")
    train(model, optimizer, range(2, 4))
    assert handle.compression_report()
    equal_on_all(model)
    # A hook of the C++ of torch is in no list of Python.
    model = wrapped(process_group=dist.new_group(backend="gloo"))
    torch.distributed._register_builtin_comm_hook(model.reducer, dist.BuiltinCommHookType.FP16_COMPRESS)
    for _ in range(2):
        fails(lambda: accelerate(model), ValueError, "communication hook already")
    train(model, sgd(model), range(2))
    equal_on_all(model)


def case_wrong_wrappers_and_optimizers() -> None:
    model = wrapped()
    fails(lambda: accelerate(nn.Sequential(wrapped()), sgd(model)), ValueError, "give it that one (model.0)")
    fails(lambda: accelerate(model, with_distributed_optimizer("none")[1]), ValueError, "give accelerate() the plain")
    fails(lambda: accelerate(model, model.parameters()), ValueError, "expected a torch.optim.Optimizer")
    fails(lambda: accelerate(net()), ValueError, "accelerate(model, optimizer)")
    fails(lambda: accelerate(model, local_updates="auto"), ValueError, "accelerate(model, optimizer, ...)")
    fails(lambda: accelerate(42), ValueError, "takes a model")
    own = hvd.Compressor()
    fails(lambda: accelerate(model, compression=own), ValueError, "register_comm_hook")
    momentum = "group_topk:momentum=0.9"
    fails(lambda: accelerate(model, compression=momentum), ValueError, "give it to accelerate()")


def case_one_bucket_gets_a_hint_once() -> None:
    start()
    said: list[str] = []
    logger, handler = logging.getLogger("sirtaki"), logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for cap, hints in (({}, 0), ({"bucket_cap_mb": 25}, 1)):
            said.clear()
            model, optimizer, _ = accelerated("int8", **cap)
            train(model, optimizer)
            # An eighth of 18,051 float32 elements.
            assert sum("bucket_cap_mb=0.009)" in text for text in said) == hints, (cap, said)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def case_sharded_models() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    fails(lambda: accelerate(model, sgd(model)), NotImplementedError, "FSDP")


def case_the_reducer_of_compiled_autograd() -> None:
    handle = accelerate(wrapped(), compression="none")
    one = torch.ones(1)
    fails(lambda: handle._reducer.hook((one, one)), NotImplementedError, "python_reducer", "at its default")


def case_a_distributed_optimizer_over_the_same_parameters() -> None:
    model, _, _ = accelerated("none")
    loss_of(model, 0).backward()
    hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    fails(lambda: loss_of(model, 1).backward(), RuntimeError, "made later combines the gradients")


def case_a_plain_model_that_is_wrapped_later() -> None:
    start()
    for how in (None, "fixed:steps=4,delay=1"):
        plain = net()
        optimizer = sgd(plain)
        handle = accelerate(plain, optimizer, compression="none", local_updates=how)
        model = DistributedDataParallel(plain)
        step_with(model, optimizer, 0)
        fails(lambda: loss_of(model, 1), ValueError, *BOTH_COMBINE)  # noqa: B023
        with torch.no_grad():
            loss_of(model, 1)
        with model.no_sync():
            loss_of(model, 1)
        train(plain, optimizer, range(1, 3))
        handle.remove()
        loss_of(model, 3).backward()

    plain, optimizer = with_distributed_optimizer("none")
    model = DistributedDataParallel(plain)
    step_with(model, optimizer, 0)
    fails(lambda: loss_of(model, 1), ValueError, *BOTH_COMBINE)
    unused = copy.deepcopy(model)
    train(unused, sgd(unused), range(2))
    equal_on_all(unused)


def case_a_distributed_optimizer_of_a_model_that_was_wrapped_before() -> None:
    start()
    model = DistributedDataParallel(net())
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    step_with(model, optimizer, 0)
    fails(lambda: loss_of(model, 1), ValueError, *BOTH_COMBINE)
    # Both mends.
    train(model.module, optimizer, range(1, 3))
    plain = sgd(model)
    accelerate(model, plain, compression="none")
    train(model, plain, range(3, 5))
    equal_on_all(model)


def case_a_wrapper_whose_parameters_the_optimizer_gets_later() -> None:
    start()
    plain, optimizer = with_distributed_optimizer("none")
    model = DistributedDataParallel(net())
    step_with(plain, optimizer, 0)
    loss_of(model, 0).backward()
    optimizer.add_param_group({"params": list(model.parameters()), "name": "another model"})
    step_with(plain, optimizer, 1)
    fails(lambda: loss_of(model, 1), ValueError, *BOTH_COMBINE)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "name": "one more"})
    step_with(plain, optimizer, 2)
    fails(lambda: loss_of(model, 2), ValueError, *BOTH_COMBINE)


def case_a_wrapper_whose_shared_parameters_are_frozen() -> None:
    """A step of the generator goes through both nets of a GAN, and the discriminator trains only in its own step."""

    class Both(nn.Module):
        def __init__(self, first: nn.Module, last: nn.Module) -> None:
            super().__init__()
            self.first, self.last = first, last

        def forward(self, rows: Tensor) -> Tensor:
            return self.last(self.first(rows))

    def freeze(frozen: bool) -> None:
        last.requires_grad_(not frozen)

    start()
    torch.manual_seed(SEED)
    first, last = nn.Linear(8, 8), net()
    of_last = hvd.DistributedOptimizer(sgd(last), last.named_parameters())
    freeze(True)
    model = DistributedDataParallel(Both(first, last))
    another = DistributedDataParallel(net())
    of_first, of_another = sgd(first), sgd(another)
    for step in range(3):
        step_with(model, of_first, step)
        step_with(another, of_another, step)
        freeze(False)
        step_with(last, of_last, step)
        freeze(True)
    equal_on_all(model)
    equal_on_all(another)
    freeze(False)
    fails(lambda: loss_of(model, 3), ValueError, *BOTH_COMBINE)
    pickle.loads(pickle.dumps(dict(model._forward_pre_hooks)))
    loss_of(copy.deepcopy(model), 3).backward()


def case_parameters_that_the_wrapper_ignores() -> None:
    inner = net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ["4.weight", "4.bias"])
    model = DistributedDataParallel(inner)
    of_last = hvd.DistributedOptimizer(sgd(inner[4]), inner[4].named_parameters())
    others = torch.optim.SGD(inner[:4].parameters(), lr=0.1)
    for step in range(3):
        model.zero_grad()
        loss_of(model, step).backward()
        of_last.step()
        others.step()
    equal_on_all(model)


def case_a_model_that_was_changed_after_it_was_wrapped() -> None:
    inner = net()
    inner[0].weight.requires_grad_(False)
    # Default buckets are made anew, with this parameter.
    model = DistributedDataParallel(inner, bucket_cap_mb=25)
    inner[0].weight.requires_grad_(True)
    accelerate(model, compression="none")
    fails(lambda: loss_of(model, 0).backward(), RuntimeError, "0.weight", "before that call")

    inner = net()
    model = DistributedDataParallel(inner)
    inner[4] = nn.Linear(128, 3)
    fails(lambda: accelerate(model), ValueError, "4.weight", "before that call")


def case_a_backward_that_fails_on_one_rank() -> None:
    class Sometimes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, rows: Tensor, fail: bool) -> Tensor:
            ctx.fail = fail
            return rows * 1.0

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
            if ctx.fail:
                raise ArithmeticError("on purpose")
            return grad, None

    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 128), nn.Linear(128, 128)

        def forward(self, rows: Tensor, fail: bool) -> Tensor:
            return self.last(Sometimes.apply(self.first(rows), fail))

    def made() -> nn.Module:
        torch.manual_seed(1)
        return Fragile()

    for told_by in ("zero_grad", "forward"):
        fail_with(told_by, made)


def fail_with(told_by: str, made: Callable[[], nn.Module]) -> None:
    """The other ranks are told by what rank 0 does next."""
    model, optimizer, _ = accelerated(TWOBIT, made)
    rows = torch.ones(2, 8)
    for _ in range(2):
        optimizer.zero_grad()
        model(rows, fail=False).square().mean().backward()
        optimizer.step()
    failing = model(rows, fail=dist.get_rank() == 0).square().mean()
    if dist.get_rank() == 0:
        fails(failing.backward, ArithmeticError, "on purpose")
        if told_by == "zero_grad":
            optimizer.zero_grad()
        else:
            fails(lambda: model(rows, fail=False), RuntimeError, "finished reduction")
    else:
        fails(failing.backward, RuntimeError, "rank 0", within=5.0)
    equal_on_all(model)


def case_a_backward_during_an_opening_that_is_late() -> None:
    model, optimizer, handle = accelerated("none")
    handle._reducer._opens_late = True
    fails(lambda: loss_of(model, 0).backward(), RuntimeError, "not combined after")
    handle._reducer._opens_late = False
    train(model, optimizer, range(2))
    equal_on_all(model)


def case_methods_that_the_model_has() -> None:
    model, optimizer, _ = accelerated("none")
    with_it = functools.partial(optimizer.set_backward_passes_per_step, 2)
    fails(with_it, NotImplementedError, "no_sync() of the model")
    fails(lambda: optimizer.no_sync().__enter__(), NotImplementedError, "no_sync() of the model")
    step_with(model, optimizer, 0)
    optimizer.synchronize()
    optimizer.wait()
    with optimizer.skip_synchronize():
        optimizer.step()


def case_a_model_that_is_wrapped_again() -> None:
    model, optimizer, _ = accelerated(TWOBIT)
    train(model, optimizer, range(2))
    again = DistributedDataParallel(model.module)
    accelerate(again, compression="none")
    train(again, sgd(again), range(2, 4))
    equal_on_all(again)
    fails(lambda: loss_of(model, 4).backward(), RuntimeError, "use the one made last")
