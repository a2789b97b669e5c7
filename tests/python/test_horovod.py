"""Unchanged Horovod programs under sirtakirun --horovod."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rank_support import launch

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 90
HOROVOD = ("--horovod",)


def run(tmp_path: Path, program: str, np: int = 1) -> str:
    script = tmp_path / "program.py"
    script.write_text(program)
    return launch(np, str(script), limit=LIMIT_SECONDS, options=HOROVOD, warm=True).stdout


def test_the_example_trains_as_it_is() -> None:
    example = ROOT / "examples/horovod_style.py"
    assert "sirtaki" not in ast.unparse(ast.parse(example.read_text()).body[1:])
    done = launch(2, str(example), "--steps", "200", limit=LIMIT_SECONDS, options=HOROVOD)
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert done.returncode == 0, done.stdout
    assert len(losses) == 2
    assert losses[1] < losses[0]


def test_without_the_option_there_is_no_horovod() -> None:
    assert importlib.util.find_spec("horovod") is None


def test_every_public_name_of_sirtaki_torch_is_there(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        "import horovod, horovod.torch as hvd, sirtaki.torch\n"
        "from horovod.torch.mpi_ops import allreduce\n"
        "from horovod.torch.functions import broadcast_object\n"
        "from horovod.torch.compression import Compression\n"
        "from horovod.common.exceptions import HorovodInternalError\n"
        "from horovod.common.process_sets import global_process_set\n"
        "other = [n for n in sirtaki.torch.__all__ if getattr(hvd, n) is not getattr(sirtaki.torch, n)]\n"
        "print(other, horovod.__version__)\n",
    )
    assert "['DistributedOptimizer', '__version__', 'broadcast_optimizer_state'] 0.28.1+sirtaki" in output


def test_gradients_are_zeros_where_there_is_no_state_to_broadcast(tmp_path: Path) -> None:
    program = (
        "import torch, horovod.torch as hvd\n"
        "from horovod.torch.functions import broadcast_optimizer_state\n"
        "hvd.init()\n"
        "model = torch.nn.Sequential(torch.nn.Embedding(3, 2, sparse=True), torch.nn.Linear(2, 2))\n"
        "model[1].bias.requires_grad_(False)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"
        "broadcast_optimizer_state(hvd.DistributedOptimizer(optimizer), 0, model)\n"
        "print('GRADIENTS', [p.grad is None for p in model.parameters()])\n"
    )
    assert run(tmp_path, program, np=2).count("GRADIENTS [True, False, True]") == 2


def test_gradients_are_waited_for_in_step_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    program = (
        "import sys, torch, horovod.torch as hvd\n"
        "hvd.init()\n"
        "for given in ({}, {'sync': 'backward'}):\n"
        "    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)\n"
        "    print('SYNC', hvd.DistributedOptimizer(optimizer, **given)._sirtaki._options.sync)\n"
    )
    assert re.findall(r"SYNC (\w+)", run(tmp_path, program)) == ["step", "backward"]
    script = tmp_path / "program.py"
    options = ("--horovod", "--sync", "forward")
    output = launch(1, str(script), limit=LIMIT_SECONDS, options=options, warm=True).stdout
    assert re.findall(r"SYNC (\w+)", output) == ["forward", "backward"]


ABSENT = """
import importlib, horovod, horovod.torch as hvd
for name in "mxnet", "spark", "ray", "runner.mpi_run", "data":
    try:
        importlib.import_module("horovod." + name)
    except ImportError as error:
        print("ABSENT", name, "|", error)
for name in "check_extension", "nonsense", "stats":
    try:
        getattr(hvd, name)
    except AttributeError as error:
        print("ABSENT", name, "|", error)
try:
    horovod.run
except ImportError as error:
    print("ABSENT run |", error)
"""


def test_what_is_unsupported_says_what_to_use(tmp_path: Path) -> None:
    told = dict(re.findall(r"ABSENT (\S+) \| (.*)", run(tmp_path, ABSENT)))
    assert "horovod.torch" in told["mxnet"]
    for name in ("spark", "ray", "runner.mpi_run", "run"):
        assert "sirtaki.run()" in told[name]
    assert "DataLoader" in told["data"]
    assert "one build" in told["check_extension"]
    assert "docs/horovod.md" not in told["nonsense"]
    assert told["stats"].endswith("it is sirtaki.stats")


ELASTIC = """
import torch, horovod.torch as hvd
from horovod.common.elastic import ObjectState, State, run_fn
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.torch.elastic import ElasticSampler, TorchState, run
from horovod.torch.elastic.sampler import ElasticSampler as the_sampler
from horovod.torch.elastic.state import ModelStateHandler, get_handler_registry, set_handler_registry
assert hvd.elastic.ElasticSampler is ElasticSampler is the_sampler
assert issubclass(TorchState, ObjectState) and issubclass(ObjectState, State)
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
@hvd.elastic.run
def train(state, steps):
    for state.batch in range(state.batch, steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.commit()
    return state.batch
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=hvd.rank())
state.register_reset_callbacks([lambda: None])
print("TRAINED", train(state, 3), sum(len(model.weight) for _ in hvd.allgather_object(0)))
"""


def test_elastic_programs_run_without_losses(tmp_path: Path) -> None:
    assert run(tmp_path, ELASTIC, np=2).count("TRAINED 2 2") == 2


TENSORFLOW = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf, keras
import horovod.tensorflow as hvd, horovod.tensorflow.keras as hvd_keras, horovod.keras
from horovod.tensorflow.mpi_ops import allgather
from horovod.tensorflow.compression import Compression
from horovod.keras.callbacks import MetricAverageCallback
import sirtaki.tensorflow, sirtaki.keras
hvd.init()
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=hvd.Compression.fp16)
model.compile(optimizer, "mse")
callbacks = [hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0), MetricAverageCallback()]
model.fit(tf.ones([8, 2]) * hvd.rank(), tf.ones([8, 1]), batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
@tf.function
def step(x):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    return tape.gradient(loss, model.trainable_variables)
step(tf.ones([4, 2]))
other = [n for n in sirtaki.tensorflow.__all__ if getattr(hvd, n) is not getattr(sirtaki.tensorflow, n)]
other += [n for n in sirtaki.keras.__all__ if getattr(horovod.keras, n) is not getattr(sirtaki.keras, n)]
print("OTHER", other, hvd.size())
from horovod.tensorflow.util import _executing_eagerly
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
assert hvd._executing_eagerly() and hvd.util._executing_eagerly() and _executing_eagerly()
assert hvd.SyncBatchNormalization is SyncBatchNormalization
try:
    hvd.check_extension
except AttributeError as error:
    print("ABSENT check_extension |", error)
from horovod.tensorflow.keras.elastic import CommitStateCallback, KerasState
from horovod.keras.elastic import UpdateBatchStateCallback, UpdateEpochStateCallback
@hvd_keras.elastic.run
def train(state):
    kinds = UpdateEpochStateCallback, UpdateBatchStateCallback, CommitStateCallback
    model.fit(tf.ones([8, 2]) * hvd.rank(), tf.ones([8, 1]), batch_size=4, epochs=2 - state.epoch, verbose=0,
              callbacks=[kind(state) for kind in kinds])
    return state.epoch, state.batch
print("TRAINED", *train(KerasState(model, epoch=hvd.rank(), batch=0)))
@hvd.elastic.run
def steps(state):
    while state.batch < 3:
        step(tf.ones([4, 2]))
        state.batch += 1
        state.commit()
    return state.batch
print("STEPPED", steps(hvd.elastic.TensorFlowKerasState(model, batch=hvd.rank())))
"""


def test_programs_for_tensorflow_and_keras(tmp_path: Path) -> None:
    output = run(tmp_path, TENSORFLOW, np=2)
    # horovod.keras has a module of its own named callbacks.
    assert output.count("OTHER ['__version__', '__version__', 'callbacks'] 2") == 2, output
    told = dict(re.findall(r"ABSENT (\S+) \| (.*)", output))
    assert "not needed" in told["check_extension"]
    assert output.count("TRAINED 2 0") == output.count("STEPPED 3") == 2, output


def test_variables_that_mean_nothing_are_named_once_on_rank_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2")
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "65536")
    monkeypatch.setenv("HOROVOD_RANK", "7")
    output = run(
        tmp_path,
        "import sirtaki, horovod.torch as hvd\n"
        "hvd.init()\n"
        "print('FUSION', sirtaki.basics.option('schedule.fusion_bytes'), hvd.rank())\n",
        np=2,
    )
    assert output.count("not used") == 1
    assert "[0!] sirtaki: HOROVOD_AUTOTUNE, HOROVOD_CYCLE_TIME: no option means this here" in output
    assert sorted(re.findall(r"FUSION (\w+ \d)", output)) == ["64KiB 0", "64KiB 1"]


def test_a_launcher_without_the_package_says_so(tmp_path: Path) -> None:
    from sirtaki.launch import launcher_path

    alone = tmp_path / "bin/sirtakirun"
    alone.parent.mkdir()
    shutil.copy2(launcher_path(), alone)
    done = subprocess.run(
        [str(alone), "-np", "1", "--horovod", "true"],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode != 0
    assert "--horovod: the Python package sirtaki is not in" in done.stderr


@pytest.fixture
def page() -> str:
    return (ROOT / "docs/horovod.md").read_text()


def test_the_page_names_every_function(page: str) -> None:
    import sirtaki.torch

    rows = page[page.index("## Functions") : page.index("## Variables")]
    missing = [name for name in sirtaki.torch.__all__ if not re.search(rf"`{re.escape(name)}[`.=(]", rows)]
    assert missing == ["Compressor", "__version__"]


def test_a_row_that_says_same_is_tested(page: str) -> None:
    rows = page[page.index("## Functions") : page.index("## Gradients through")]
    same = {
        name
        for row in re.findall(r"^\| (.*?) \| same \|", rows, re.MULTILINE)
        for name in re.findall(r"`([\w.]+)`", row)
    }
    files = [*(ROOT / "tests/python/ranks").rglob("*.py"), ROOT / "tests/python/test_horovod.py"]
    used = {
        name for file in files for name in re.findall(r"\bhvd\.((?:Compression\.|elastic\.)?\w+)", file.read_text())
    }
    assert len(same) > 50
    assert same - used == set()


def test_the_page_names_every_variable(page: str) -> None:
    import sirtaki

    known = {row["horovod"] for row in sirtaki.options()} - {""}
    places = {"RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"}
    # The launcher sets these variables, and one is a switch; none of them is another name of an option.
    others = {f"HOROVOD_{place}" for place in places} | {"HOROVOD_STALL_CHECK_DISABLE"}
    assert set(re.findall(r"`(HOROVOD_\w+)`", page[page.index("## Variables") :])) == known | others


def absent_module() -> ModuleType:
    path = ROOT / "adapters/python/sirtaki/_horovod/horovod/_unsupported.py"
    spec = importlib.util.spec_from_file_location("absent", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.pop("absent", None)
    spec.loader.exec_module(module)
    return module


def test_places_that_launchers_give_are_not_called_ignored() -> None:
    environment = {
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_X": "1",
        "HOROVOD_KNOWN": "1",
        "PATH": "",
    }
    assert absent_module().ignored(environment, {"HOROVOD_KNOWN", ""}) == ["HOROVOD_X"]
