"""Compressed gradients in DistributedOptimizer: codecs in every mode, checkpoints, flush, gradients not finite."""

from __future__ import annotations

import copy
import io
import logging
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sirtaki
import sirtaki.torch as hvd
from ranks.torch.forward_support import MODES
from ranks.torch.optimizer_support import close, raises, same_on_all_ranks

IN, WIDE, OUT, BATCH = 64, 96, 5, 8
CODECS = (
    "none",
    "fp16",
    "int8",
    "int4",
    "fp8_e4m3",
    "twobit:wire=gather",
    "twobit:wire=scatter",
    "onebit",
    "group_topk:rate=0.05,group=128,wire=gather",
    "group_topk:rate=0.05,group=128,wire=scatter",
    "threshold_sparse:density=0.05",
    "kernel_sparse",
    "block_topk:rate=0.25,block=64",
    "twobit:wire=counts",
)
TOPK = "group_topk:rate=0.05,group=128,wire=gather"


class Net(nn.Module):
    """Two matrices that are large enough to be compressed, and small tensors that are not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(1, 8, 3)
        self.first = nn.Linear(IN, WIDE)
        self.second = nn.Linear(WIDE, WIDE)
        self.last = nn.Linear(WIDE, OUT)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x) + self.conv(x.view(-1, 1, 8, 8)).mean((1, 2, 3)).unsqueeze(1))
        return self.last(F.relu(self.second(x)))


def batch(step: int, rank: int | None = None) -> tuple[Tensor, Tensor]:
    own = hvd.rank() if rank is None else rank
    generator = torch.Generator().manual_seed(100 * step + own)
    inputs = torch.randn(BATCH, IN, generator=generator)
    return inputs, (inputs[:, :OUT] * 3).argmax(1)


def make(compression: Any, sync: str = "backward", lr: float = 0.1, momentum: float = 0.0, **options: Any) -> Any:
    return make_sgd(compression, sync, {"lr": lr, "momentum": momentum}, **options)


def make_sgd(compression: Any, sync: str, settings: dict[str, Any], **options: Any) -> Any:
    model = Net()
    plain = torch.optim.SGD(model.parameters(), **settings)
    named = model.named_parameters()
    return model, hvd.DistributedOptimizer(plain, named, compression=compression, sync=sync, **options)


def train(model: nn.Module, optimizer: Any, steps: range) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        inputs, labels = batch(step % 4)
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    optimizer.wait()
    return losses


def mean_loss(losses: list[float]) -> float:
    """Returns the mean over all ranks, so that all agree on whether a case fails."""
    return float(hvd.allreduce(torch.tensor(losses)).mean())


def rows(optimizer: Any) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in optimizer.compression_report()}


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state after a round trip through a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Constant(nn.Module):
    """A model whose gradients do not depend on its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, 128))

    def gradient(self, step: int, rank: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        return torch.randn(64, 128, generator=generator)

    def forward(self, step: int) -> Tensor:
        return (self.weight * self.gradient(step, hvd.rank())).sum()


def constant(compression: str, **options: Any) -> tuple[Constant, Any]:
    model = Constant()
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, hvd.DistributedOptimizer(plain, model.named_parameters(), compression=compression, **options)


def run_constant(model: Constant, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(step).backward()
        optimizer.step()


def mean_of_gradients(model: Constant, steps: range) -> Tensor:
    return sum(model.gradient(s, r) for s in steps for r in range(hvd.size())) / hvd.size()  # type: ignore[return-value]


def near(a: Tensor, b: Tensor) -> None:
    assert torch.allclose(a, b, rtol=1e-4, atol=1e-4), float((a - b).abs().max())


# ---- codecs --------------------------------------------------------------------------------


def case_every_codec_in_every_mode() -> None:
    for codec in CODECS:
        models = []
        for sync in MODES:
            model, optimizer = make(codec, sync)
            losses = train(model, optimizer, range(30))
            same_on_all_ranks(model.parameters())
            first, last = mean_loss(losses[:4]), mean_loss(losses[-4:])
            assert last < first - 0.05, (codec, sync, first, last)
            models.append(model)
        for model in models[1:]:
            close(model, models[0], 0.0)


def case_none_is_bit_equal_to_no_compression() -> None:
    (model, optimizer), (reference, plain) = make("none"), make(hvd.Compression.none)
    train(model, optimizer, range(5))
    train(reference, plain, range(5))
    close(model, reference, 0.0)


def case_auto_is_bit_equal_to_none_where_no_link_is_a_limit() -> None:
    (model, optimizer), (reference, plain) = make("auto", momentum=0.9), make("none", momentum=0.9)
    train(model, optimizer, range(60))
    train(reference, plain, range(60))
    assert {row["codec"] for row in optimizer.compression_report()} == {"none"}, optimizer.compression_report()
    close(model, reference, 0.0)


def case_settings_and_text_are_the_same() -> None:
    models = []
    for choice in (hvd.Compression.group_topk(rate=0.05, group=128), "group_topk:rate=0.05,group=128"):
        model, optimizer = make(choice)
        train(model, optimizer, range(5))
        models.append(model)
    close(models[0], models[1], 0.0)


def case_rules_choose_by_name() -> None:
    model, optimizer = make({"first*": "twobit", "second.weight": hvd.Compression.int8, "*": "none"})
    train(model, optimizer, range(3))
    codecs = {name: row["codec"] for name, row in rows(optimizer).items()}
    assert codecs["first.weight"] == "twobit", codecs
    assert codecs["second.weight"] == "int8", codecs
    assert codecs["last.weight"] == codecs["first.bias"] == "none", codecs
    same_on_all_ranks(model.parameters())


def case_a_loss_is_a_number_or_one_for_each_sample() -> None:
    model, optimizer = make("importance:split=loss")
    optimizer.report_loss(0.5)  # no effect yet: the stream opens in the first step
    train(model, optimizer, range(2))
    optimizer.report_loss(0.5)
    optimizer.report_loss(torch.ones(BATCH, requires_grad=True))
    optimizer.report_loss(float("nan"))
    train(model, optimizer, range(2))
    same_on_all_ranks(model.parameters())


def case_every_tensor_has_a_reason() -> None:
    model, optimizer = make(TOPK)
    assert optimizer.compression_report() == []
    train(model, optimizer, range(3))
    table = rows(optimizer)
    assert list(table) == [name for name, _ in model.named_parameters()]
    assert table["first.weight"]["codec"] == "group_topk", table
    assert table["first.weight"]["ratio"] > 4, table
    assert table["first.weight"]["owed_norm"] > 0, table
    assert table["first.bias"]["codec"] == "none", table
    assert table["first.bias"]["owed_norm"] == 0, table
    assert all(row["reason"] for row in table.values()), table
    assert 0 < table["first.weight"]["density"] < 0.3, table
    assert table["first.bias"]["density"] == 1, table
    streams = sirtaki.stats()["tensors"]
    mine = [found for found in streams.values() if [row["name"] for row in found] == list(table)]
    without_debts = [{k: v for k, v in row.items() if k != "owed_norm"} for row in table.values()]
    assert without_debts in mine, streams


def case_accumulation() -> None:
    model, optimizer = make(TOPK, backward_passes_per_step=2)
    for step in range(4):
        optimizer.zero_grad()
        for part in range(2):
            inputs, labels = batch(2 * step + part)
            F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    same_on_all_ranks(model.parameters())


def case_frozen_parameters() -> None:
    model = Net()
    model.first.weight.requires_grad_(False)
    before = model.first.weight.detach().clone()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), compression=TOPK)
    train(model, optimizer, range(4))
    assert torch.equal(model.first.weight, before)
    assert "first.weight" not in rows(optimizer)
    same_on_all_ranks(model.parameters())


# ---- gradients that are not finite ---------------------------------------------------------


def case_a_nan_reaches_all_ranks_and_no_residual() -> None:
    model, optimizer = make(TOPK)
    train(model, optimizer, range(3))
    before = saved(optimizer.state_dict())["sirtaki"]["owed"]
    weights = [p.detach().clone() for p in model.parameters()]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    inputs, labels = batch(3)
    if hvd.rank() == hvd.size() - 1:
        inputs[0, 0] = float("nan")
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(inputs), labels)).backward()
    assert bool(model.first.weight.grad.isnan().any())
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True))
    after = optimizer.state_dict()["sirtaki"]["owed"]
    assert all(torch.equal(before[name], after[name]) for name in before)
    train(model, optimizer, range(4, 7))
    same_on_all_ranks(model.parameters())


# ---- checkpoints ---------------------------------------------------------------------------


def case_a_checkpoint_loaded_again_in_the_same_run() -> None:
    model, optimizer = make(TOPK)
    train(model, optimizer, range(4))
    files = saved(copy.deepcopy(model.state_dict())), saved(optimizer.state_dict())
    train(model, optimizer, range(4, 8))
    wanted = copy.deepcopy(model)
    model.load_state_dict(files[0])
    optimizer.load_state_dict(files[1])
    train(model, optimizer, range(4, 8))
    close(model, wanted, 0.0)
    if hvd.rank() != 0:
        foreign = {**files[1], "sirtaki": {**files[1]["sirtaki"], "rank": 0}}
        raises(lambda: optimizer.load_state_dict(foreign), ValueError, "gather_state()", "before it")


def case_nothing_is_owed_without_compression() -> None:
    model, optimizer = make("none")
    train(model, optimizer, range(3))
    assert "sirtaki" not in optimizer.state_dict()
    assert "sirtaki" not in optimizer.gather_state()
    optimizer.flush()


def case_flush_gives_the_model_all_that_is_owed() -> None:
    for codec in (TOPK, "group_topk:rate=0.05,group=128,wire=scatter", "twobit", "int8"):
        for op in (hvd.Average, hvd.Sum):
            model, optimizer = constant(codec, op=op)
            run_constant(model, optimizer, range(6))
            optimizer.flush()
            wanted = -mean_of_gradients(model, range(6)) * (1 if op is hvd.Average else hvd.size())
            near(model.weight.detach(), wanted)
            assert "sirtaki" not in optimizer.state_dict()
            same_on_all_ranks(model.parameters())


def case_a_gathered_checkpoint_holds_what_all_owe() -> None:
    model, optimizer = constant(TOPK)
    run_constant(model, optimizer, range(4))
    file = saved(optimizer.gather_state())
    again, loaded = constant(TOPK)
    again.load_state_dict(model.state_dict())
    loaded.load_state_dict(file)
    run_constant(again, loaded, range(4, 6))
    loaded.flush()
    near(again.weight.detach(), -mean_of_gradients(model, range(6)))


class Heard(logging.Handler):
    """A handler that keeps the texts of log records."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def case_a_checkpoint_of_more_ranks_is_shared() -> None:
    heard = Heard()
    logging.getLogger("sirtaki").addHandler(heard)
    size = hvd.size()
    try:
        model, optimizer = constant(TOPK)
        run_constant(model, optimizer, range(4))
        file = saved(optimizer.state_dict())
        # The file looks as if the run had had twice as many ranks and half of them were gone.
        file["sirtaki"]["size"] = 2 * size
        again, loaded = constant(TOPK)
        loaded.load_state_dict(file)
        owed = sum(hvd.allgather(file["sirtaki"]["owed"]["weight"].unsqueeze(0)))
        run_constant(again, loaded, range(4, 6))
        loaded.flush()
        near(again.weight.detach(), -mean_of_gradients(model, range(4, 6)) - owed / (2 * size))
        assert len(heard.texts) == (1 if hvd.rank() == 0 else 0), heard.texts
        assert all("gather_state()" in text and f"{2 * size} ranks" in text for text in heard.texts), heard.texts
        assert all("begin anew" in text for text in heard.texts), heard.texts
    finally:
        logging.getLogger("sirtaki").removeHandler(heard)


def case_one_checkpoint_on_all_ranks_counts_once() -> None:
    model, optimizer = constant(TOPK)
    run_constant(model, optimizer, range(4))
    file = hvd.broadcast_object(saved(optimizer.state_dict()), 0)
    again, loaded = constant(TOPK)
    loaded.load_state_dict(file)
    run_constant(again, loaded, range(4, 6))
    loaded.flush()
    near(again.weight.detach(), -mean_of_gradients(model, range(4, 6)) - file["sirtaki"]["owed"]["weight"] / hvd.size())


def case_a_checkpoint_loaded_where_nothing_is_compressed() -> None:
    model, optimizer = constant(TOPK)
    run_constant(model, optimizer, range(4))
    file = saved(optimizer.state_dict())
    again, loaded = constant("none")
    again.load_state_dict(model.state_dict())
    loaded.load_state_dict(file)
    run_constant(again, loaded, range(4, 6))
    near(again.weight.detach(), -mean_of_gradients(model, range(6)))


def case_broadcast_of_the_optimizers_state_leaves_debts_alone() -> None:
    model, optimizer = constant(TOPK)
    run_constant(model, optimizer, range(3))
    hvd.broadcast_optimizer_state(optimizer, 0)
    run_constant(model, optimizer, range(3, 5))
    optimizer.flush()
    near(model.weight.detach(), -mean_of_gradients(model, range(5)))


def case_bad_checkpoints() -> None:
    _, optimizer = constant(TOPK)
    good = optimizer.state_dict()
    for owed, words in (
        ({"rank": 0, "size": 1, "owed": {"bias": torch.zeros(3)}}, ("bias", "no parameter")),
        ({"rank": 0, "size": 1, "owed": {"weight": torch.zeros(3)}}, ("weight", "[3]", "[64, 128]")),
        ({"owed": {}}, ("state_dict()",)),
    ):
        raises(lambda owed=owed: optimizer.load_state_dict({**good, "sirtaki": owed}), ValueError, *words)


# ---- bad input -----------------------------------------------------------------------------


def case_choices_that_cannot_be() -> None:
    model = Net()
    named = list(model.named_parameters())

    def made(choice: Any, momentum: float = 0.0, **options: Any) -> Any:
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        return hvd.DistributedOptimizer(plain, named, compression=choice, **options)

    for choice, words in (
        ("zip", ("zip", "group_topk")),
        ("", ("empty",)),
        ({}, ("empty",)),
        ({"a;b": "int8"}, ("a;b",)),
        ({"*": {"*": "int8"}}, ("method",)),
        ({"*": "a*=>int8"}, ("rules",)),
        ("group_topk:rate=2", ("rate", "2")),
        ("group_topk:rat=0.1", ("rat", "rate")),
        ("group_topk:rate=0.1,group=0", ("group",)),
        ("int8:ef=maybe", ("ef", "maybe")),
    ):
        raises(lambda choice=choice: made(choice), ValueError, *words)
    raises(lambda: hvd.Compression.group_topk(rate=[1]), ValueError, "rate")
    for text, momentum, words in (
        (f"{TOPK},momentum=0.9", 0.0, ("0.9", "has 0", "the same")),
        (f"first*=>{TOPK},momentum=50%;*=>none", 0.9, ("0.5", "has 0.9")),
        (f"first*=>{TOPK},momentum=0.5;*=>{TOPK},momentum=0.9", 0.9, ("0.5 and 0.9", "the same")),
        (f"{TOPK},momentum=0.9,nesterov=on", 0.9, ("nesterov=on", "nesterov=False")),
    ):
        raises(lambda text=text, momentum=momentum: made(text, momentum), ValueError, *words)
    damped = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
    raises(
        lambda: hvd.DistributedOptimizer(damped, named, compression=f"{TOPK},momentum=0.9"), ValueError, "dampening=0.5"
    )
    adam = torch.optim.Adam(model.parameters())
    raises(
        lambda: hvd.DistributedOptimizer(adam, named, compression=f"{TOPK},momentum=0.9"),
        ValueError,
        "Adam",
        "momentum",
    )


def case_a_rule_that_fits_no_tensor() -> None:
    model, optimizer = make({"frist*": "twobit"})
    raises(lambda: train(model, optimizer, range(1)), ValueError, "frist*")
    hvd.barrier()


def case_ranks_that_choose_differently() -> None:
    model, optimizer = make("twobit" if hvd.rank() == 0 else "int8")
    raises(lambda: train(model, optimizer, range(1)), hvd.HorovodInternalError, "codec")
    hvd.barrier()
