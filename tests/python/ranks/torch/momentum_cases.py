"""Codec state from earlier steps: momentum correction, warm-up of density, and both in checkpoints."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import sirtaki.torch as hvd
from ranks.torch.compression_cases import TOPK, batch, make, make_sgd, mean_loss, rows, saved, train
from ranks.torch.forward_support import MODES
from ranks.torch.optimizer_support import close, raises, same_on_all_ranks

# The factor 7/8 causes no rounding.
SGD: tuple[dict[str, Any], ...] = (
    {"lr": 0.02, "momentum": 0.875},
    {"lr": 0.02, "momentum": 0.875, "weight_decay": 0.05},
    {"lr": 0.02, "momentum": 0.875, "weight_decay": 0.05, "nesterov": True},
)


def corrected(settings: dict[str, Any], rest: str) -> str:
    return f"group_topk:momentum=0.875,nesterov={'on' if settings.get('nesterov') else 'off'},{rest}"


def case_momentum_correction() -> None:
    for sync in MODES:
        model, optimizer = make(f"{TOPK},momentum=0.9", sync, lr=0.02, momentum=0.9)
        losses = train(model, optimizer, range(30))
        assert mean_loss(losses[-4:]) < mean_loss(losses[:4]), losses
        same_on_all_ranks(model.parameters())
        momenta = {name: row["momentum"] for name, row in rows(optimizer).items()}
        assert abs(momenta["first.weight"] - 0.9) < 1e-4, momenta
        assert momenta["first.bias"] == momenta["last.weight"] == 0, momenta
        # Without weight decay SGD keeps the momentum of uncompressed tensors, and of no others.
        state = {id(p): s for p, s in optimizer.state.items() if s.get("momentum_buffer") is not None}
        kept = {name for name, p in model.named_parameters() if id(p) in state}
        assert kept == {name for name, factor in momenta.items() if factor == 0}, kept


def case_momentum_correction_of_nothing_is_sgd_bit_for_bit() -> None:
    for settings in SGD:
        for sync in MODES:
            reference, plain = make_sgd("none", sync, settings)
            train(reference, plain, range(6))
            model, optimizer = make_sgd(corrected(settings, "min=1GiB"), sync, settings)
            train(model, optimizer, range(6))
            close(model, reference, 0.0)


def case_momentum_correction_of_all_elements_is_sgd() -> None:
    """Ranks keep the momentum of their own gradients; its mean is the momentum of the mean up to rounding."""
    for settings in SGD:
        for rest in ("rate=1,wire=gather,min=0,ndim=0", "rate=1,wire=gather,ndim=2"):
            for sync in MODES:
                reference, plain = make_sgd("none", sync, settings)
                train(reference, plain, range(6))
                model, optimizer = make_sgd(corrected(settings, rest), sync, settings)
                train(model, optimizer, range(6))
                assert {row["codec"] for row in rows(optimizer).values()} >= {"group_topk"}
                close(model, reference, 1e-5)
                same_on_all_ranks(model.parameters())
    model, optimizer = make("threshold_sparse:density=1,wire=gather,min=0,ndim=0,momentum=0.875", momentum=0.875)
    reference, plain = make("none", momentum=0.875)
    train(reference, plain, range(6))
    train(model, optimizer, range(6))
    close(model, reference, 1e-4)


def case_closures_and_hooks_see_steps() -> None:
    settings = SGD[2]
    seen: list[float] = []
    model, optimizer = make_sgd(corrected(settings, "rate=0.05,group=128"), "step", settings)
    optimizer.register_step_pre_hook(lambda *_: seen.append(float(model.first.weight.grad.abs().sum())))
    for step in range(3):
        inputs, labels = batch(step)

        def closure(inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            return loss

        assert float(optimizer.step(closure)) > 0
        assert float(model.first.weight.grad.abs().sum()) == seen[-1] > 0
    assert len(seen) == 3, seen
    same_on_all_ranks(model.parameters())


# ---- warm-up of density --------------------------------------------------------------------

WARM = (
    "group_topk:rate=1%,wire=gather,warmup={}",
    "group_topk:rate=1%,wire=scatter,warmup={}",
    "threshold_sparse:density=1%,warmup={}",
    "algc:momentum=0.5,warmup={}",
)


def case_warm_up_sends_more_at_first() -> None:
    for codec in WARM:
        debts = []
        for steps in (0, 12):
            model, optimizer = make(codec.format(steps), momentum=0.5)
            train(model, optimizer, range(3))
            debts.append(rows(optimizer)["first.weight"]["owed_norm"])
            train(model, optimizer, range(3, 20))
            same_on_all_ranks(model.parameters())
            reason = rows(optimizer)["first.weight"]["reason"]
            assert ("warm-up" in reason) == (steps > 0), reason
        assert debts[1] < 0.9 * debts[0], (codec, debts)


def _fail(_: Tensor) -> None:
    raise RuntimeError("a mistake in backward()")


def case_warm_up_goes_on_after_a_step_that_was_given_up() -> None:
    model, optimizer = make(f"{TOPK},warmup=10")
    for step in range(14):
        optimizer.zero_grad()
        inputs, labels = batch(step)
        loss = F.cross_entropy(model(inputs), labels)
        if step not in {3, 7}:
            loss.backward()
            optimizer.step()
            continue
        hook = model.first.bias.register_hook(_fail) if hvd.rank() == hvd.size() - 1 else None
        raises(loss.backward, RuntimeError)
        if hook is not None:
            hook.remove()
    same_on_all_ranks(model.parameters())


# ---- checkpoints ---------------------------------------------------------------------------

#: Without `wire` the collective of int8 and int4 follows the link, and a resumed training may take the other one.
RESUMED = (
    "int8:wire=gather",
    "int4:wire=gather",
    TOPK,
    f"{TOPK},momentum=0.9",
    "threshold_sparse:density=0.05,momentum=0.9,reestimate=3",
    "threshold_sparse:density=0.02,warmup=7,reestimate=5",
    f"{TOPK},warmup=6",
    "powersgd",
)


def case_training_goes_on_bit_for_bit_from_a_checkpoint() -> None:
    for codec in RESUMED:
        for sync in MODES:
            model, optimizer = make(codec, sync, lr=0.02, momentum=0.9)
            train(model, optimizer, range(4))
            files = saved(copy.deepcopy(model.state_dict())), saved(optimizer.state_dict())
            assert files[1]["sirtaki"]["rank"] == hvd.rank()
            train(model, optimizer, range(4, 8))
            again, loaded = make(codec, sync, lr=0.02, momentum=0.9)
            again.load_state_dict(files[0])
            loaded.load_state_dict(files[1])
            train(again, loaded, range(4, 8))
            close(again, model, 0.0)


def case_codecs_go_on_after_a_flush() -> None:
    model, optimizer = make(f"{TOPK},momentum=0.9", lr=0.02, momentum=0.9)
    train(model, optimizer, range(4))
    before = optimizer.state_dict()["sirtaki"]["memory"]
    optimizer.flush()
    after = optimizer.state_dict()["sirtaki"]
    assert not after["owed"], after["owed"].keys()
    assert before.keys() == after["memory"].keys() == {"first.weight", "second.weight"}, before.keys()
    assert all(torch.equal(before[name][1], after["memory"][name][1]) for name in before)
