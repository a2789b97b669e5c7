"""Snapshots of states of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sirtaki.torch as hvd  # noqa: E402
from sirtaki import _growth  # noqa: E402
from sirtaki.elastic import _snapshots  # noqa: E402
from sirtaki.elastic._snapshot_file import Header, load  # noqa: E402
from sirtaki.elastic._snapshot_folder import Folder  # noqa: E402
from sirtaki.torch.elastic import TorchState  # noqa: E402
from sirtaki.torch.elastic.state import StateHandler, get_handler_registry, snapshot  # noqa: E402

pytestmark = pytest.mark.usefixtures("session")


def through_file(folder: Path, state: Any) -> Any:
    """Returns a state as it comes back from a file."""
    Folder(str(folder)).write(Header(1, 0.0, "a", 1), state, TorchState._pickled_by)
    return load(folder / "snapshot-000000000001")


def test_what_is_handed_over_stays_that_of_its_commit(tmp_path: Path) -> None:
    def made() -> TorchState:
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.1), compression="int8")
        return TorchState(model, optimizer, step=0, scaler=torch.amp.GradScaler("cpu", init_scale=8.0))

    state = made()
    committed, handed_over = [], None
    for _ in range(3):
        state.optimizer.zero_grad()
        # The sum alone of normalised outputs has no gradient but rounding.
        (state.model(torch.randn(4, 3)) * torch.arange(8.0).reshape(4, 2)).sum().backward()
        state.optimizer.step()
        state.step += 1
        state.commit()
        handed_over = handed_over or state._hand_over()
        committed.append(snapshot([state.model.state_dict(), state.optimizer.state_dict()["state"]]))
    resumed = made()
    resumed._take_over(through_file(tmp_path, handed_over))
    assert resumed.step == 1
    now = [resumed.model.state_dict(), resumed.optimizer.state_dict()["state"]]
    torch.testing.assert_close(now, committed[0], rtol=0, atol=0)
    assert not torch.equal(committed[0][0]["0.weight"], committed[1][0]["0.weight"])


def test_a_training_with_local_updates_goes_on_at_its_age(tmp_path: Path) -> None:
    def made() -> TorchState:
        model = torch.nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), local_updates=4)
        return TorchState(model, optimizer)

    def local_of(state: TorchState) -> tuple[int, int, bool, object]:
        local = state.optimizer._sirtaki_local
        return local._steps, local._steps_since_drain, local._warm, local._restored

    of_program = {"rank": 0, "size": 1, "steps": 7, "rounds": 0, "affordable_rounds": 0, "alone": True, "saved": b""}
    state = made()
    local = state.optimizer._sirtaki_local
    local._steps, local._steps_since_drain, local._warm = 50, 3, True
    state.save()
    saved = through_file(tmp_path, state._hand_over())
    assert saved["objects"]["optimizer"]["sirtaki.local"] == {"steps": 50, "alone_steps": 0, "warm": True}
    for takes in (True, False):  # rank 0, and the others
        resumed = made()
        resumed.optimizer._sirtaki_local.load(of_program)
        resumed.optimizer._sirtaki.residuals._loaded = {"rank": 0}
        resumed._forget_loaded()
        if takes:
            resumed._take_over(saved)
        assert local_of(resumed) == ((50, 0, True, None) if takes else (0, 0, False, None))
        assert not resumed.optimizer._sirtaki.residuals.has_loaded_state
    local.load(of_program)
    state.save()
    assert state._hand_over()["objects"]["optimizer"]["sirtaki.local"]["steps"] == 7


def test_a_value_comes_back_on_the_device_where_the_program_has_it() -> None:
    state = TorchState(mean=torch.empty(2, device="meta"))
    state._take_over({"objects": {}, "values": {"mean": torch.ones(2), "model": None, "optimizer": None}})
    assert state.mean.device.type == "meta"


def test_the_check_of_a_state_costs_no_copy() -> None:
    state = TorchState(torch.nn.Linear(3, 2))
    handler: Any = state._handlers["model"]
    kept = handler._saved["weight"]
    _snapshots._require_written_whole(state)
    state.save()
    assert handler._saved["weight"] is kept


def test_tensors_of_all_kinds_come_back(tmp_path: Path) -> None:
    tensors = {
        "half": torch.randn(3, 2).to(torch.bfloat16),
        "transposed": torch.arange(6).view(2, 3).T,
        "flag": torch.tensor(True),
        "none": torch.empty(0, 2),
        "sparse": torch.eye(3).to_sparse(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    loaded = through_file(tmp_path, tensors)
    for name, tensor in tensors.items():
        made = loaded[name]
        assert (type(made), made.dtype, made.shape) == (type(tensor), tensor.dtype, tensor.shape)
        assert torch.equal(made.to_dense(), tensor.to_dense()), name
    loaded["half"] += 1


def test_a_snapshot_of_another_model_is_an_error_that_names_the_value() -> None:
    saved = TorchState(torch.nn.Linear(3, 2))._hand_over()
    with pytest.raises(ValueError, match=r"model: .*\n.*size mismatch for weight"):
        TorchState(torch.nn.Linear(4, 2))._take_over(saved)
    with pytest.raises(ValueError, match="it has no scaler"):
        TorchState(torch.nn.Linear(3, 2), scaler=torch.amp.GradScaler("cpu"))._take_over(saved)


def test_a_handler_that_snapshots_cannot_write_is_named() -> None:
    class Handler(StateHandler):
        def save(self) -> None:
            """Copies nothing."""

    get_handler_registry().insert(0, (Path, Handler))
    try:
        with pytest.raises(NotImplementedError, match="Handler, which handles place, is none that snapshots can write"):
            TorchState(place=Path())._check_hand_over()
    finally:
        get_handler_registry().pop(0)


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_commit_outside_of_elastic_run_tells_once_that_it_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], where: str
) -> None:
    def train(state: TorchState) -> None:
        for _ in range(2):
            state.commit()

    monkeypatch.setenv("SIRTAKI_ELASTIC_SNAPSHOT_DIR", str(tmp_path))
    monkeypatch.setattr(_growth._state, "unchecked", True)
    hvd.shutdown()
    hvd.init()  # with the folder
    train(TorchState(step=0)) if where == "outside" else hvd.elastic.run(train)(TorchState(step=0))
    assert capfd.readouterr().err.count("no effect outside of elastic.run()") == (where == "outside")
