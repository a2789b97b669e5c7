"""sync() of a TorchState in an elastic job: the bytes that travel, and that all ranks have the state of rank 0."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import sirtaki
import sirtaki.torch as hvd
from sirtaki.torch.elastic._compared import row_major_bytes, write_bytes

#: More than sync() sends of a state that is equal on all ranks, and less than a hundredth of the state.
SMALL = 40_000
WIDTH = 1024


class State(hvd.elastic.TorchState):
    """A state with a model of some MB, Adam, and a number."""

    def __init__(self, seed: int, trained: bool = True) -> None:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))
        optimizer = torch.optim.Adam(model.parameters(), 0.01 * (1 + seed))
        super().__init__(model, optimizer, step=seed)
        if trained:
            model(torch.randn(4, WIDTH)).sum().backward()
            optimizer.step()

    def tensors(self) -> list[Tensor]:
        states = self.optimizer.state_dict()["state"]
        return [*self.model.state_dict().values(), *(value for key in sorted(states) for value in states[key].values())]

    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())


def sent_by(function: Callable[[], Any]) -> list[int]:
    """Returns the bytes that each rank sends in a call."""

    def sent() -> int:
        hvd.barrier()
        return sum(peer["bytes_sent"] for peer in sirtaki.stats()["peers"])

    before = sent()
    function()
    return hvd.allgather_object(sent() - before)


def same_as_rank_0(state: State, expected: Any = None) -> None:
    """Fails unless all ranks have the tensors and numbers of rank 0, and these are as expected."""
    tensors = [row_major_bytes(tensor) for tensor in state.tensors()]
    whole = [tensors, state.step, state.optimizer.param_groups[0]["lr"], [t.dtype for t in state.tensors()]]
    of_0 = hvd.broadcast_object(whole)
    assert len(tensors) == len(of_0[0])
    assert all(map(torch.equal, tensors, of_0[0]))
    assert whole[1:] == of_0[1:]
    if expected is not None and hvd.rank() == 0:
        assert all(map(torch.equal, tensors, map(row_major_bytes, expected)))


def case_equal_tensors_are_not_sent() -> None:
    state = State(hvd.rank())
    before = copy.deepcopy(state.tensors())
    assert sum(sent_by(state.sync)) > state.bytes() * (hvd.size() - 1) * 0.9, "all have begun with other numbers"
    same_as_rank_0(state, before)
    state.step = hvd.rank()
    state.optimizer.param_groups[0]["lr"] = 0.5 + hvd.rank()
    sent = sent_by(state.sync)
    assert max(sent) < SMALL < state.bytes() / 100, sent
    same_as_rank_0(state, before)
    assert (state.step, state.optimizer.param_groups[0]["lr"]) == (0, 0.5)


def case_a_tensor_that_differs_on_one_rank_becomes_that_of_rank_0() -> None:
    for victim in range(hvd.size()):
        state = State(0)
        if hvd.rank() == victim:
            flip(state.model[2].weight)
            flip(state.optimizer.state[state.model[2].weight]["exp_avg_sq"])
        before = copy.deepcopy(state.tensors())
        sent = sent_by(state.sync)
        assert max(sent) < SMALL, sent
        same_as_rank_0(state, before)


def case_buffers_that_differ_by_right_become_those_of_rank_0() -> None:
    state = State(0)
    state.model[1].running_mean += hvd.rank()
    before = copy.deepcopy(state.tensors())
    assert max(sent_by(state.sync)) < SMALL
    same_as_rank_0(state, before)


def case_a_new_rank_gets_all_and_the_others_nothing() -> None:
    new = hvd.size() - 1
    is_new = hvd.rank() == new
    state = State(7 if is_new else 0, trained=not is_new)
    kept = {} if is_new else {id(tensor): tensor for tensor in state.tensors()}
    before = copy.deepcopy(state.tensors())
    size = hvd.broadcast_object(state.bytes())
    sent = sent_by(state.sync)
    same_as_rank_0(state, before)
    assert size < sum(sent) < size + SMALL * hvd.size(), sent
    assert sent[new] < SMALL
    assert max(sent) < size / (hvd.size() - 1) + SMALL, "the others share it"
    assert is_new or all(torch.equal(tensor, old) for tensor, old in zip(state.tensors(), kept.values(), strict=True))


def case_states_of_optimizers_may_be_empty_on_some_ranks() -> None:
    for empty in ([0], [hvd.size() - 1]):
        state = State(0, trained=hvd.rank() not in empty)
        state.sync()
        same_as_rank_0(state)
        assert len(state.optimizer.state) == (0 if 0 in empty else 6)


def case_the_order_of_a_state_and_a_part_of_it_do_no_harm() -> None:
    state = State(0)
    if hvd.rank() == 1:
        items = list(state.optimizer.state.items())
        state.optimizer.state.clear()
        state.optimizer.state.update(reversed(items[1:]))
    state.sync()
    same_as_rank_0(state)
    state.optimizer.zero_grad()
    state.model(torch.ones(4, WIDTH)).sum().backward()
    state.optimizer.step()
    same_as_rank_0(state)


class Clearing(torch.optim.SGD):
    """Clears its tensors before it reads those of a checkpoint."""

    def load_state_dict(self, state: Any) -> None:
        for value in self.state.values():
            value["momentum_buffer"].zero_()
        super().load_state_dict(state)


def case_an_optimizer_that_loads_in_its_own_way_keeps_its_numbers() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(9))
    optimizer = Clearing([weight], 0.1, momentum=0.9)
    weight.sum().backward()
    optimizer.step()
    before = optimizer.state[weight]["momentum_buffer"].clone()
    hvd.elastic.TorchState(optimizer=optimizer).sync()
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], before)


def case_tensors_of_all_kinds() -> None:
    made = {
        "bits16": torch.arange(7.0).bfloat16(),
        "flags": torch.tensor([True, False, True]),
        "counts": torch.tensor([[2**40, -1]]),
        "empty": torch.empty(0, 3),
        "columns": torch.arange(6.0).view(2, 3).t(),
        "every_other": torch.arange(8.0)[::2],
        "images": torch.arange(48.0).view(1, 3, 4, 4).to(memory_format=torch.channels_last),
        "pairs": torch.tensor([1 + 2j, complex("nan")]),
        "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "nothing": torch.full((3,), torch.nan, dtype=torch.float64),
        "scalar": torch.tensor(3, dtype=torch.uint8),
    }
    model = nn.Module()
    for name, value in made.items():
        model.register_buffer(name, value)
    state = hvd.elastic.TorchState(model)
    right = {name: row_major_bytes(value).clone() for name, value in made.items()}
    for name, value in made.items():
        for victim in (0, hvd.size() - 1):
            if value.numel() and hvd.rank() == victim:
                flip(value)
            expected = hvd.broadcast_object(row_major_bytes(value))
            state.sync()
            assert torch.equal(row_major_bytes(value), expected), name
            write_bytes(value, right[name])
    assert model.columns.stride() == (1, 3), "tensors keep their memory"


def case_values_and_tensors_among_them_are_always_those_of_rank_0() -> None:
    state = hvd.elastic.TorchState(best=torch.full((3,), float(hvd.rank())), text=f"rank {hvd.rank()}")
    state.sync()
    assert state.best.tolist() == [0.0] * 3
    assert state.text == "rank 0"


def case_a_model_without_tensors() -> None:
    state = hvd.elastic.TorchState(nn.Identity(), step=hvd.rank())
    state.sync()
    assert state.step == 0


def case_modules_that_ranks_have_made_in_another_order() -> None:
    names = ["one", "two", "three"]
    model = nn.Module()
    for name in names if hvd.rank() % 2 == 0 else names[::-1]:
        model.register_buffer(name, torch.full((4,), float(names.index(name))))
    if hvd.rank() == hvd.size() - 1:
        flip(model.two)
    hvd.elastic.TorchState(model).sync()
    assert [model.get_buffer(name).tolist() for name in names[:1] + names[2:]] == [[0.0] * 4, [2.0] * 4]
    assert all(torch.equal(model.two, other) for other in hvd.allgather_object(model.two))


def case_parameters_that_share_memory() -> None:
    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    state = hvd.elastic.TorchState(model)
    state.sync()
    own = model[0].weight.detach()
    assert all(torch.equal(own, other) for other in hvd.allgather_object(own))
    assert model[1].weight is model[0].weight


def flip(tensor: Tensor) -> None:
    """Changes the lowest bit of the last element."""
    values = row_major_bytes(tensor.detach()).clone()
    values[-tensor.element_size()] ^= 1
    write_bytes(tensor.detach(), values)
