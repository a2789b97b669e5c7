"""Doors for Lightning and Hugging Face without these libraries: errors of imports and of misuse, order of calls.

test_compat_trainers.py trains with the libraries themselves. A loop with callbacks needs none, and trains here.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rank_support import launch

torch = pytest.importorskip("torch")

DOORS = {
    "sirtaki.lightning": ("lightning", "lightning.pytorch", 2),
    "sirtaki.pytorch_lightning": ("pytorch_lightning", "pytorch_lightning", 2),
    "sirtaki.torch._trainers.huggingface_trainer": ("transformers", "transformers", 5),
    "sirtaki.torch._trainers.huggingface_accelerator": ("accelerate", "accelerate", 1),
}


class Recorder:
    """Keeps the names of its methods in the order of calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.calls.append(name)


class Registry(dict):
    def register(self, name: str, strategy: type, description: str, override: bool) -> None:
        assert description
        assert override
        self[name] = strategy


class DDPStrategy:
    """Does what the strategy of Lightning does to the attributes that Sirtaki uses."""

    def __init__(self, ddp_comm_hook: Any = None) -> None:
        self._ddp_comm_hook = ddp_comm_hook
        self.calls: list[str] = []
        self.precision_plugin = SimpleNamespace(_wrap_closure=lambda model, optimizer, closure: closure())

    def setup(self, trainer: Any) -> None:
        self.calls.append("setup")

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        self.calls.append("plain step")

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return {"weights": list(self.calls)}

    def training_step(self) -> str:
        return "loss"

    def on_validation_start(self) -> None:
        self.calls.append("validation")

    def on_train_end(self) -> None:
        self.calls.append("end")


def fake_library(name: str, version: str, **attributes: Any) -> ModuleType:
    made = ModuleType(name)
    made.__version__ = version
    vars(made).update(attributes)
    return made


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Imports doors anew, on fakes."""
    for door in DOORS:
        sys.modules.pop(door, None)
    yield monkeypatch
    for door in DOORS:
        sys.modules.pop(door, None)


@pytest.fixture
def lightning(modules: pytest.MonkeyPatch) -> Any:
    strategies = SimpleNamespace(DDPStrategy=DDPStrategy, StrategyRegistry=Registry())
    inside = fake_library("lightning.pytorch", "2.6", strategies=strategies, Callback=object)
    modules.setitem(sys.modules, "lightning", fake_library("lightning", "2.6.6", pytorch=inside))
    modules.setitem(sys.modules, "lightning.pytorch", inside)
    return importlib.import_module("sirtaki.lightning")


@pytest.fixture
def huggingface(modules: pytest.MonkeyPatch) -> Any:
    modules.setitem(sys.modules, "accelerate", None)
    callback = type("TrainerCallback", (), {})
    modules.setitem(sys.modules, "transformers", fake_library("transformers", "5.23.0", TrainerCallback=callback))
    return importlib.import_module("sirtaki.torch._trainers.huggingface_trainer")


@pytest.mark.parametrize("door", DOORS)
def test_a_missing_library_is_named_with_its_package(modules: pytest.MonkeyPatch, door: str) -> None:
    top, _, major = DOORS[door]
    modules.setitem(sys.modules, top, None)
    with pytest.raises(
        ImportError, match=rf'needs {top.replace("_", "-")} {major} or newer: pip install ".*>={major}"'
    ):
        importlib.import_module(door)


@pytest.mark.parametrize("door", DOORS)
def test_an_old_library_is_named_with_its_version(modules: pytest.MonkeyPatch, door: str) -> None:
    top, inside, major = DOORS[door]
    for name in (top, inside):
        modules.setitem(sys.modules, name, fake_library(name, f"{major - 1}.9.5"))
    with pytest.raises(ImportError, match=rf"{major} or newer, and this is {major - 1}\.9\.5: pip install"):
        importlib.import_module(door)


# Without the check, the first use of torch.compiler in an import would be the error.
OLD_TORCH = "import torch; torch.__version__ = '2.0.1'; del torch.compiler"
OLD_KERAS = "import sys, types; made = sys.modules['keras'] = types.ModuleType('keras'); made.__version__ = '2.15.0'"
OLD = {"torch": ("2.5", "2.0.1", OLD_TORCH), "keras": ("3", "2.15.0", OLD_KERAS)}


@pytest.mark.parametrize(("door", "package"), [("torch", "torch"), ("torch.ddp", "torch"), ("keras", "keras")])
def test_an_old_framework_is_named_with_the_command_that_mends_it(door: str, package: str) -> None:
    least, found, faked = OLD[package]
    top = f"sirtaki.{door.partition('.')[0]}"
    told = import_with(faked, f"sirtaki.{door}")
    assert f'{top} needs {package} {least} or newer, and this is {found}: pip install "{package}>={least}"' in told
    told = import_with(f"import sys; sys.modules['{package}'] = None", f"sirtaki.{door}")
    assert f'{top} needs {package} {least} or newer: pip install "{package}>={least}"' in told


def import_with(before: str, door: str) -> str:
    """Returns the last line of the error of an import in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\nimport {door}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


def test_names_of_hugging_face_need_their_own_library_only(huggingface: Any) -> None:
    door = importlib.import_module("sirtaki.huggingface")
    assert door.SirtakiCallback is huggingface.SirtakiCallback
    with pytest.raises(ImportError, match=r"sirtaki\.huggingface needs accelerate"):
        _ = door.accelerate_prepared
    with pytest.raises(AttributeError, match="no attribute 'Callback'"):
        _ = door.Callback


def test_the_strategy_of_lightning_is_registered(lightning: Any) -> None:
    registry = sys.modules["lightning.pytorch"].strategies.StrategyRegistry
    assert registry == {"sirtaki": lightning.SirtakiStrategy}
    assert lightning.SirtakiStrategy.__module__ == "sirtaki.lightning"


def test_a_second_hook_of_lightning_is_refused(lightning: Any) -> None:
    with pytest.raises(ValueError, match="leave out ddp_comm_hook"):
        lightning.SirtakiStrategy(ddp_comm_hook=print).setup(None)


def test_a_callback_extends_the_strategy_once(lightning: Any) -> None:
    callback, trainer = lightning.SirtakiCallback("int8", 4), SimpleNamespace(strategy=DDPStrategy())
    callback.setup(trainer, None, "test")
    assert type(trainer.strategy) is DDPStrategy, "only fit() trains"
    for _ in range(2):
        callback.setup(trainer, None, "fit")
    assert type(trainer.strategy).__name__ == "DDPStrategy"
    assert trainer.strategy.sirtaki_choices == {"compression": "int8", "local_updates": 4}
    with pytest.raises(ValueError, match="leave out one of them"):
        lightning.SirtakiCallback().setup(trainer, None, "fit")
    with pytest.raises(ValueError, match="leave out one of them"):
        callback.setup(SimpleNamespace(strategy=lightning.SirtakiStrategy()), None, "fit")
    with pytest.raises(NotImplementedError, match="give the Trainer strategy='ddp'"):
        callback.setup(SimpleNamespace(strategy=object()), None, "fit")


def test_the_strategy_drains_before_lightning_reads(lightning: Any, modules: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    handle = Recorder()
    code = sys.modules["sirtaki.torch._trainers.lightning_classes"]
    modules.setattr(code, "accelerate", lambda *args, **kwargs: given.append((args, kwargs)) or handle)
    strategy = lightning.SirtakiStrategy(compression="auto")
    strategy.model, strategy.optimizers = "model", ["optimizer"]
    strategy.setup(SimpleNamespace(state=SimpleNamespace(fn="validate")))
    strategy.on_validation_start()
    assert not given
    strategy.setup(SimpleNamespace(state=SimpleNamespace(fn="fit")))
    assert given == [(("model", ["optimizer"]), {"compression": "auto", "local_updates": None})]
    assert strategy.training_step() == "loss"
    strategy.on_validation_start()
    strategy.lightning_module_state_dict()
    strategy.on_train_end()
    assert handle.calls == ["keep_reducer_off", "drain", "prepare_checkpoint", "prepare_checkpoint"]
    assert strategy.calls == ["setup", "validation", "setup", "validation", "end"]


def test_local_updates_get_no_closure_from_lightning(lightning: Any) -> None:
    strategy, optimizer = lightning.SirtakiStrategy(), Recorder()
    optimizer._sirtaki_local = None
    strategy.optimizer_step(optimizer, lambda: "loss", "model")
    assert strategy.calls == ["plain step"]
    optimizer._sirtaki_local = object()
    assert strategy.optimizer_step(optimizer, lambda: "loss", "model") == "loss"
    assert optimizer.calls == ["step"]
    strategy.precision_plugin.scaler = object()
    strategy.optimizer_step(optimizer, lambda: "loss", "model")
    assert strategy.calls == ["plain step"] * 2, "GradScaler is refused by step()"


def test_lightning_logs_metrics_at_its_steps(lightning: Any, modules: pytest.MonkeyPatch) -> None:
    modules.setattr("sirtaki._telemetry.selection.metrics", lambda: {"steps": 3, "codec": "int8", "size": 2})
    logged: list[Any] = []
    logger = SimpleNamespace(log_metrics=lambda numbers, step: logged.append((numbers, step)))
    trainer = SimpleNamespace(global_step=0, log_every_n_steps=2, is_global_zero=True, loggers=[logger])
    callback = lightning.SirtakiMetrics(["steps"])
    for trainer.global_step in (0, 1, 2, 2, 3, 4):
        callback.on_train_batch_end(trainer, None, None, None, 0)
    assert logged == [({"sirtaki/steps": 3.0}, 2), ({"sirtaki/steps": 3.0}, 4)]
    with pytest.raises(ValueError, match=r"is not a number of sirtaki.metrics\(\)"):
        lightning.SirtakiMetrics(["codec"])


def test_the_trainer_drains_and_prepares_checkpoints(huggingface: Any) -> None:
    callback = huggingface.SirtakiCallback()
    args, state = SimpleNamespace(save_strategy="steps"), SimpleNamespace(global_step=1, max_steps=9)
    control = SimpleNamespace(should_save=False, should_evaluate=False, should_training_stop=False)
    callback.on_step_end(args, state, control)  # one process: nothing to do
    callback.acceleration = handle = Recorder()
    callback.on_step_end(args, state, control)
    assert handle.calls == []
    control.should_evaluate = True
    callback.on_step_end(args, state, control)
    args.save_strategy = "best"
    callback.on_epoch_end(args, state, control)
    control.should_evaluate, state.global_step = False, 9
    callback.on_step_end(args, state, control)
    callback.on_train_end(args, state, control)
    assert handle.calls == ["drain", "prepare_checkpoint", "drain"], "the model stays as it is after the last drain"


def test_a_trainer_without_a_wrapper_is_refused(huggingface: Any) -> None:
    callback = huggingface.SirtakiCallback()
    model, optimizer = torch.nn.Linear(2, 2), object()
    callback.on_train_begin(SimpleNamespace(world_size=1), None, None, model=model, optimizer=optimizer)
    assert callback.acceleration is None
    with pytest.raises(NotImplementedError, match="torchrun or accelerate launch"):
        callback.on_train_begin(SimpleNamespace(world_size=2), None, None, model=model, optimizer=optimizer)


def test_metrics_come_before_the_loggers_of_a_trainer(huggingface: Any, modules: pytest.MonkeyPatch) -> None:
    modules.setattr("sirtaki._telemetry.selection.metrics", lambda: {"steps": 3, "size": 2})
    trainer = SimpleNamespace(callback_handler=SimpleNamespace(callbacks=["TensorBoard"]))
    huggingface.add_metrics(trainer, ["steps"], "")
    first, state = trainer.callback_handler.callbacks[0], SimpleNamespace(is_world_process_zero=True)
    logs: dict[str, float] = {"loss": 1.0}
    first.on_log(None, state, None, logs=logs)
    assert logs == {"loss": 1.0, "steps": 3.0}
    first.on_log(None, state, None, logs=(logs := {"eval_loss": 1.0}))
    assert logs == {"eval_loss": 1.0}


def test_accelerate_prepared_comes_after_prepare(modules: pytest.MonkeyPatch) -> None:
    accelerator = type("Accelerator", (), {"num_processes": 2})
    modules.setitem(sys.modules, "accelerate", fake_library("accelerate", "1.15.0", Accelerator=accelerator))
    prepared = importlib.import_module("sirtaki.huggingface").accelerate_prepared
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"call model, optimizer = accelerator\.prepare\(model, optimizer\) before"):
        prepared(accelerator(), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="takes the Accelerator first"):
        prepared(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_loop_with_callbacks_trains_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    program = Path(__file__).resolve().parent / "trainers/loop_door.py"
    done = launch(2, str(program), str(tmp_path), warm=True)
    assert done.returncode == 0, done.stdout
    assert "TRAINED" in done.stdout
