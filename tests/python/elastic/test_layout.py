"""Layouts of elastic states: which differences are found, and which ranks end for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import sirtaki.torch as hvd  # noqa: E402
from sirtaki import basics, elastic  # noqa: E402
from sirtaki.elastic import _layout  # noqa: E402
from sirtaki.elastic._layout import Part, difference, digest, fits, part_of, require_same_layout  # noqa: E402
from sirtaki.elastic._snapshots import Snapshots  # noqa: E402
from sirtaki.elastic.variables import VariablesState  # noqa: E402
from sirtaki.errors import InvalidArgumentError, MismatchError, RanksChangedError  # noqa: E402
from sirtaki.torch.elastic import TorchState  # noqa: E402

WEIGHT = Part("tensor", (10, 64), "torch.float32")
OWN = {"fc.weight": WEIGHT, "epoch": Part("value")}
OTHER = {"fc.weight": Part("tensor", (10, 128), "torch.float32"), "epoch": Part("value")}
LOST = RanksChangedError("rank 2 was lost")


@pytest.mark.parametrize(
    ("own", "text"),
    [
        (OWN, ""),
        (dict(reversed(OWN.items())), ""),
        (OTHER, "tensor 'fc.weight': (10, 128) here, (10, 64) on rank 0"),
        (
            {**OWN, "fc.weight": Part("tensor", (10, 64), "torch.float64")},
            "tensor 'fc.weight': torch.float64 here, torch.float32 on rank 0",
        ),
        ({"epoch": Part("value")}, "tensor 'fc.weight' is on rank 0, but not here"),
        ({**OWN, "best": Part("value")}, "value 'best' is here, but not on rank 0"),
        ({**OWN, "epoch": Part("object")}, "'epoch': object here, value on rank 0"),
        ({"head.weight": WEIGHT}, "tensor 'fc.weight' is on rank 0, but not here, and 2 more differ"),
    ],
)
def test_the_first_difference_in_the_order_of_rank_0_is_named(own: dict[str, Part], text: str) -> None:
    assert difference(own, OWN) == text
    assert (digest(own) == digest(OWN)) == (text == "")


def test_labels_are_for_messages_alone() -> None:
    own, theirs = ({"0": Part("variable", (size,), "float32", f"0 (dense_{size}/kernel)")} for size in (1, 2))
    assert difference(own, theirs) == "variable 0 (dense_1/kernel): (1,) here, (2,) on rank 0"
    assert digest({"0": Part("variable", (1,), "float32", "0 (dense_3/kernel)")}) == digest(own)


def compare(layouts: list[dict[str, Part]], have_state: list[bool], rank: int) -> mock.Mock:
    """Calls require_same_layout() on one of these ranks, and returns its exchanges. New ranks are lost meanwhile."""
    objects = mock.Mock()
    bare = [{key: part for key, part in layout.items() if part.kind != "value"} for layout in layouts]
    rows = [(has, digest(bare), digest(whole)) for has, bare, whole in zip(have_state, bare, layouts, strict=True)]
    texts = [difference(one, layouts[0], f"on rank {number}") for number, one in enumerate(layouts)]
    objects.allgather_object.side_effect = [rows, texts]
    objects.broadcast_object.return_value = layouts[0]
    state = mock.Mock(_layout=lambda: layouts[rank], _objects=lambda: objects)
    job = mock.patch.multiple(basics, is_elastic=lambda: True, size=lambda: len(layouts), rank=lambda: rank)
    with job, mock.patch.object(_layout, "_await_their_end", side_effect=LOST):
        require_same_layout(state, have_state[rank])
    return objects


def test_equal_layouts_cost_one_exchange() -> None:
    objects = compare([OWN, dict(reversed(OWN.items()))], [True, False], 1)
    assert objects.allgather_object.call_count == 1
    objects.broadcast_object.assert_not_called()


def test_a_new_rank_that_differs_ends_and_the_others_wait_for_that() -> None:
    layouts, have_state = [OWN, OWN, OTHER, OWN], [True, True, False, False]
    with pytest.raises(InvalidArgumentError, match=r"cannot join the job: tensor 'fc.weight': \(10, 128\) here"):
        compare(layouts, have_state, 2)
    for rank in (0, 1, 3):
        with pytest.raises(RanksChangedError):
            compare(layouts, have_state, rank)


@pytest.mark.parametrize("have_state", [[False] * 3, [True] * 3, [False, True, True]])
def test_ranks_that_begin_together_or_have_the_state_fail_alike(have_state: list[bool]) -> None:
    for rank in range(3):
        with pytest.raises(MismatchError, match=r"'fc.weight': \(10, 128\) on rank 1, \(10, 64\) on rank 0") as error:
            compare([OWN, OTHER, OWN], have_state, rank)
        assert error.value.rank == 1


@pytest.mark.parametrize("have_state", [[False] * 3, [True] * 3, [False, True, True]])
def test_values_that_rank_0_alone_has_are_no_difference_for_ranks_that_are_not_new(have_state: list[bool]) -> None:
    layouts = [{**OWN, "best": Part("value")}, OWN, OWN]
    for rank in range(3):
        assert compare(layouts, have_state, rank).allgather_object.call_count == 1
    with pytest.raises(InvalidArgumentError, match=r"cannot join the job: value 'best' is on rank 0, but not here"):
        compare(layouts, [True, True, False], 2)


def test_jobs_that_are_not_elastic_compare_nothing(session: None) -> None:
    state = mock.Mock()
    with mock.patch.object(basics, "is_elastic", return_value=True):
        require_same_layout(state, False)  # alone
    with mock.patch.object(basics, "size", return_value=2):
        require_same_layout(state, False)
    state._layout.assert_not_called()
    state._objects.assert_not_called()


def test_layouts_are_compared_before_a_sync_transfers_anything(session: None) -> None:
    state = elastic.ObjectState(step=0)
    error = mock.patch("sirtaki.elastic._snapshots.require_same_layout", side_effect=MismatchError("differ"))
    with error, mock.patch.object(state, "sync") as sync, pytest.raises(MismatchError):
        Snapshots(state, None).sync()
    sync.assert_not_called()


def test_states_of_torch_tell_tensors_objects_and_values(session: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model[0].parameters(), 1.0, momentum=0.9)
    before = TorchState(model, optimizer, epoch=0)._layout()
    assert before["model.0.weight"] == Part("tensor", (2, 3), "torch.float32")
    assert before["model.1.num_batches_tracked"] == Part("tensor", (), "torch.int64")
    assert before["optimizer.param_groups[0][1]"].shape == (2,)
    assert (before["optimizer"], before["epoch"]) == (Part("object", dtype="SGD"), Part("value"))
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    # A new rank does not have the momenta of the others, nor the same scheduler as one that has none.
    assert digest(TorchState(model, optimizer, epoch=5)._layout()) == digest(before)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    states = [TorchState(model, optimizer, epoch=0, scheduler=one)._layout() for one in (None, scheduler)]
    assert difference(*states) == "'scheduler': value here, object on rank 0"
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer)
    assert difference(TorchState(model, optimizer, epoch=0, scheduler=constant)._layout(), states[1]) == (
        "object 'scheduler': ConstantLR here, StepLR on rank 0"
    )


def test_objects_of_equal_layouts_are_synced_and_compared_in_the_same_order(session: None) -> None:
    def made(*names: str) -> TorchState:
        models = {name: torch.nn.Linear(2, 2) for name in names}
        params = [(f"{name}.{key}", value) for name in sorted(names) for key, value in models[name].named_parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param for _, param in params], 0.1), params)
        return TorchState(optimizer=optimizer, **models)

    states = made("disc", "gen"), made("gen", "disc")
    assert len({digest(state._layout()) for state in states}) == 1
    for state in states:
        synced = []
        with ExitStack() as stack:
            for name, handler in state._handlers.items():
                stack.enter_context(mock.patch.object(handler, "sync", partial(synced.append, name)))
            state.sync()
        assert synced == ["disc", "gen", "optimizer"]
        compared = [one.name for one in state._comparison._tensors.find()]
        assert compared[:4] == ["disc.weight", "disc.bias", "gen.weight", "gen.bias"]


class ShapeOfUnknownRank:
    """tf.TensorShape(None), which has no length."""

    def __iter__(self) -> Iterator[int]:
        raise ValueError("Cannot iterate over a shape with unknown rank.")


def test_shapes_may_be_unknown() -> None:
    unknown, scalar, partly = (
        part_of("variable", mock.Mock(shape=shape, dtype="float32")) for shape in (ShapeOfUnknownRank(), (), (None, 3))
    )
    assert (unknown.shape, scalar.shape, partly.shape) == (None, (), (None, 3))
    assert len({digest({"0": part}) for part in (unknown, scalar, partly)}) == 3
    assert fits((2, 3), None)
    assert fits((2, 3), (None, 3))
    assert not fits((2, 3), (3, None))
    assert not fits((2, 3), (2, 3, 1))


def test_states_of_variables_tell_shapes_by_place(session: None) -> None:
    class State(VariablesState):
        def __init__(self, variables: list[Any]) -> None:
            self.variables = variables
            super().__init__(step=0)

        def _variables(self) -> list[Any]:
            return self.variables

        def _value_of(self, variable: Any) -> Any:
            return None

    weights = [mock.Mock(shape=(3, size), dtype="float32", path=f"net_{size}/kernel") for size in (1, 2)]
    own, theirs = (State([one])._layout() for one in weights)
    assert difference(own, theirs) == "variable 0 (net_1/kernel): (3, 1) here, (3, 2) on rank 0"
    assert own["step"] == Part("value")
