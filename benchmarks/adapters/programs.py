"""The examples for Lightning and Hugging Face, with and without the line of Sirtaki. Runs inside a worker.

The module, the model and the data are those of examples/. Thread: the main thread of the worker.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.adapters.cases import ALONE, LIGHTNING, OURS
from benchmarks.common.systems import Place
from benchmarks.results import ROOT

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


class Records:
    """Beginning of the first step and ends of all steps, by the clock of the machine; bytes sent by an interface."""

    def __init__(self, place: Place, interface: str) -> None:
        self._place = place
        self._interface = interface
        self._before = 0
        self.begin: float | None = None
        self.ends: list[float] = []
        self.sent = 0

    def begins(self) -> None:
        """Marks the beginning of a step. Ranks begin the first one together, even if nothing else connects them."""
        if self.begin is None:
            self._meet()
            self._before = self._counted()
            self.begin = time.monotonic()

    def _meet(self) -> None:
        (Path(self._place.folder) / f"begins{self._place.rank}").touch()
        while len(list(Path(self._place.folder).glob("begins*"))) < self._place.size:
            time.sleep(0.001)

    def ended(self) -> None:
        """Marks the end of a step."""
        self.ends.append(time.monotonic())
        self.sent = self._counted() - self._before

    def _counted(self) -> int:
        from benchmarks.training.learning import interface_bytes

        return interface_bytes(self._interface) if self._interface else 0


def fit(place: Place, door: str, way: str, recipe: dict[str, Any]) -> dict[str, Any]:
    """Trains; returns `begin` and `ends` of the steps, `sent` bytes, and the `loss` of this rank on its sample."""
    import torch

    os.environ["HF_HUB_OFFLINE"] = "1"
    folder = str(ROOT / "examples")
    if folder not in sys.path:
        sys.path.append(folder)
    records = Records(place, recipe["interface"])
    torch.manual_seed(recipe["seed"])
    train = _lightning if door == LIGHTNING else _huggingface
    net = train(place, way, recipe, records)
    return {"begin": records.begin, "ends": records.ends, "sent": records.sent, "loss": _loss(net, place, recipe)}


def _loss(net: Any, place: Place, recipe: dict[str, Any]) -> float:
    from benchmarks.training.nets import make_task

    task = make_task(recipe["net"], recipe["batch"], place.rank, place.size)
    task.model = net
    return task.sample_loss()


def _lightning(place: Place, way: str, recipe: dict[str, Any], records: Records) -> Any:
    import lightning
    from fashion_mnist import load
    from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment
    from lightning_fashion_mnist import Module
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks.training.nets import make_model

    class Watch(lightning.Callback):
        on_train_batch_start = _method(records.begins)
        on_train_batch_end = _method(records.ended)

    here = int(os.environ["LOCAL_WORLD_SIZE"])
    os.environ["GROUP_RANK"] = str(place.rank // here)
    settings: dict[str, Any] = {"devices": here, "num_nodes": place.size // here, "plugins": TorchElasticEnvironment()}
    if way == ALONE:
        settings = {"devices": 1, "plugins": LightningEnvironment()}
    elif way == OURS:
        from sirtaki.lightning import SirtakiStrategy

        settings["strategy"] = SirtakiStrategy()
    else:
        settings["strategy"] = "ddp"
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    settings |= {"accelerator": "cpu", "max_steps": recipe["steps"], "max_epochs": -1, "callbacks": [Watch()]}
    trainer = lightning.Trainer(**settings, **silent)
    data = TensorDataset(*load(train=True).batch(slice(None)))
    module = Module()
    module.net = make_model(recipe["net"])
    trainer.fit(module, DataLoader(data, batch_size=recipe["batch"], shuffle=True))
    return module.net


def _huggingface(place: Place, way: str, recipe: dict[str, Any], records: Records) -> Any:
    if way == ALONE:
        for name in _RANK_VARIABLES:
            os.environ.pop(name, None)
    from huggingface_fashion_mnist import Model, rows_of
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from benchmarks.training.nets import make_model
    from benchmarks.training.optimizers import make_optimizer

    class Watch(TrainerCallback):
        on_step_begin = _method(records.begins)
        on_step_end = _method(records.ended)

    settings: dict[str, Any] = {"max_steps": recipe["steps"], "per_device_train_batch_size": recipe["batch"]}
    settings |= {"seed": recipe["seed"], "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    settings |= {"save_strategy": "no", "logging_strategy": "no"}
    callbacks: list[Any] = [Watch()]
    if way == OURS:
        from sirtaki.huggingface import SirtakiCallback

        callbacks.append(SirtakiCallback())
    model = Model()
    model.net = make_model(recipe["net"])
    optimizer = make_optimizer(model, "sgd", recipe["lr"], recipe["momentum"])
    arguments = TrainingArguments(str(Path(place.folder) / f"output{place.rank}"), **settings)
    how: dict[str, Any] = {"train_dataset": rows_of(train=True), "callbacks": callbacks}
    Trainer(model, arguments, optimizers=(optimizer, None), **how).train()
    return model.net


def _method(mark: Callable[[], None]) -> Callable[..., None]:
    """Returns a method of a callback that marks a time, whatever its arguments."""

    def method(*_given: Any, **_named: Any) -> None:
        mark()

    return method
