"""The tensors of an elastic state that are compared, their digests, and the texts about differences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from bit_flips import flip  # noqa: E402

import sirtaki.torch as hvd  # noqa: E402
from sirtaki.elastic._comparison import Pass  # noqa: E402
from sirtaki.elastic._divergence import Difference, Fingerprint, differences, ranks_text, told_of_end  # noqa: E402
from sirtaki.torch.elastic._compared import compared_of, row_major_bytes, write_bytes  # noqa: E402
from sirtaki.torch.elastic._comparison import Tensors  # noqa: E402

pytestmark = pytest.mark.usefixtures("session")


def trained(**options: Any) -> dict[str, Any]:
    """Returns a state behind a step."""
    layers = torch.nn.Linear(40, 500), torch.nn.BatchNorm1d(500), torch.nn.Linear(500, 3)
    model = torch.nn.Sequential(*layers)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters(), **options)
    model(torch.randn(8, 40)).square().sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def test_steps_of_adasum_have_equal_parameters_and_states_of_their_own() -> None:
    names = {one.name for one in compared_of(trained(op=hvd.Adasum))}
    assert names == {f"model.{layer}.{part}" for layer in range(3) for part in ("weight", "bias")}


def test_the_parameters_of_a_trained_model_are_compared_and_nothing_else() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    model[0].requires_grad_(False)
    model[2].bias = model[0].bias
    model.append(torch.nn.Linear(2, 2))
    plain = torch.optim.SGD(model[3].parameters(), 0.1)
    teacher, more = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*model[1].parameters(), model[2].weight, more], 0.1))
    optimizer.state[more]["deep"] = {"a": [torch.ones(2), (torch.zeros(1), 3)], "sparse": torch.eye(2).to_sparse()}
    optimizer.state[more]["none"] = torch.empty(0)
    values = {"model": model, "teacher": teacher, "optimizer": optimizer, "plain": plain, "step": 3}
    found = [one.name for one in compared_of(values)]
    own = optimizer._parameter_names[more]
    assert found == [
        *("model.0.weight", "model.0.bias", "model.1.weight", "model.1.bias", "model.2.weight"),
        f"optimizer: parameter {own}",
        f"optimizer: deep a 0 of optimizer: parameter {own}",
        f"optimizer: deep a 1 0 of optimizer: parameter {own}",
    ]


KINDS = {
    "half": torch.arange(6).view(2, 3).to(torch.bfloat16),
    "transposed": torch.arange(6.0).view(2, 3).T,
    "channels last": torch.arange(48.0).view(2, 3, 2, 4).to(memory_format=torch.channels_last),
    "with gaps": torch.arange(12.0).view(3, 4)[:, ::2],
    "expanded": torch.ones(1, 3).expand(2, 3),
    "number": torch.tensor(3.0),
    "flags": torch.tensor([True, False]),
    "complex": torch.ones(3, dtype=torch.complex64),
    "conjugated": torch.ones(3, dtype=torch.complex64).conj(),
    "fp8": torch.ones(4).to(torch.float8_e4m3fn),
    "nan": torch.tensor([float("nan"), 1.0]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_all_kinds_are_compared_and_healed(kind: str) -> None:
    made = [KINDS[kind], KINDS[kind].clone(), KINDS[kind].contiguous().clone()]
    kinds = [torch.nn.Parameter(torch.ones(1)) for _ in made]
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD([one], 0.1), [("p", one)]) for one in kinds]
    for optimizer, param, value in zip(optimizers, kinds, made, strict=True):
        optimizer.state[param]["value"] = value
    (_, first), (_, second), (_, third) = (compared_of({"optimizer": one}) for one in optimizers)
    assert first.fingerprint() == second.fingerprint() == third.fingerprint()
    digests = [Pass([one]).digest(0, 1 << 20) for one in (first, second)]
    assert digests[0] == digests[1]
    before = Pass([second]).digest(0, 1 << 20)
    flip(made[1], 0)
    assert Pass([second]).digest(0, 1 << 20) != before
    assert second.fingerprint() != first.fingerprint()
    write_bytes(made[1], row_major_bytes(made[2]))
    assert second.fingerprint() == first.fingerprint()
    assert Pass([second]).digest(0, 1 << 20) == before


def test_each_byte_is_in_one_piece_of_a_pass() -> None:
    values = trained()
    tensors = compared_of(values)
    assert len(tensors) == 6 * 4
    one_pass = Pass(tensors)
    pieces = range(0, one_pass.length, 10000)
    before = [one_pass.digest(begin, 10000) for begin in pieces]
    for one in tensors:
        flip(one.tensor())
        now = [one_pass.digest(begin, 10000) for begin in pieces]
        assert sum(a != b for a, b in zip(before, now, strict=True)) == 1
        flip(one.tensor())


def test_a_commit_waits_once_for_each_gpu() -> None:
    tensors = Tensors(trained)
    with mock.patch("torch.cuda.current_stream") as streams:
        found = tensors.find()
        tensors.settle()
        streams.assert_not_called()
        on_gpus = [replace(one, gpu=torch.device("cuda", number % 2)) for number, one in enumerate(found)]
        with mock.patch("sirtaki.torch.elastic._comparison.compared_of", return_value=on_gpus):
            assert tensors.find() == on_gpus
        tensors.settle()
    assert sorted(str(call.args[0]) for call in streams.call_args_list) == ["cuda:0", "cuda:1"]
    assert streams.return_value.synchronize.call_count == 2


def test_texts_of_differences() -> None:
    assert [ranks_text(ranks) for ranks in ([3], [2, 0, 1], [0, 2, 3, 7])] == ["rank 3", "ranks 0-2", "ranks 0, 2-3, 7"]
    rows = [{"a": Fingerprint("", "f", digest), "b": Fingerprint("", "f", b"x")} for digest in (b"x", b"y", b"x")]
    del rows[1]["b"]
    found = differences(rows)
    assert found == [Difference("a", ((0, 2), (1,))), Difference("b", ((0, 2), (1,)), of_other_kind=True)]
    assert told_of_end(found).startswith("a has different values on ranks 0, 2 and rank 1 (and 1 more tensor differs);")
