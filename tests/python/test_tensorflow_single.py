"""The adapter for TensorFlow in one process, and its errors where it cannot be used."""

from __future__ import annotations

import subprocess
import sys

import pytest
from rank_support import clean_environment

LIMIT_SECONDS = 120
INSTALL = 'pip install "tensorflow>=2.16,<2.22"'


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**clean_environment(), "TF_CPP_MIN_LOG_LEVEL": "2", **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "absent", "said"),
    [
        ("sirtaki.tensorflow", "tensorflow", f"needs TensorFlow 2.16 to 2.21, and there is none: {INSTALL}"),
        ("sirtaki.keras", "keras", "needs keras 3 or newer: pip install"),
    ],
)
def test_a_missing_framework_is_named_in_one_line(module: str, absent: str, said: str) -> None:
    done = run(f"import sys; sys.modules['{absent}'] = None; import {module}")
    assert done.returncode != 0
    assert said in done.stderr.splitlines()[-1]


def test_other_versions_and_back_ends_are_told() -> None:
    done = run(
        "import warnings; warnings.simplefilter('error')\n"
        "from sirtaki.tensorflow import _library\n"
        "_library.check_version('2.16.1')\n"
        "for text in ('2.15.1', '1.15', '2.22.0', 'x'):\n"
        "    try:\n"
        "        _library.check_version(text)\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    told = done.stdout.splitlines()
    assert [line.partition(" ")[0] for line in told] == ["ImportError", "ImportError", "UserWarning", "ImportError"]
    assert "sirtaki.tensorflow needs TensorFlow 2.16 to 2.21, and this is 2.15.1: " + INSTALL in told[0]


ONE = """
import tensorflow as tf, keras, numpy as np
import sirtaki.tensorflow as hvd, sirtaki.keras
try:
    hvd.allreduce(tf.ones([2]))
except ValueError as error:
    print("BEFORE", error)
hvd.init()
x = tf.constant([1.0, 2.0])
assert hvd.allreduce(x).numpy().tolist() == [1.0, 2.0]
assert tf.function(hvd.allgather)(x).numpy().tolist() == [1.0, 2.0]
assert hvd.alltoall(x, [2])[1].numpy().tolist() == [2]
v = tf.Variable(x)
with tf.GradientTape(persistent=True) as tape:
    y = tf.reduce_sum(hvd.broadcast(v, 0) * hvd.reducescatter(v))
assert hvd.DistributedGradientTape(tape).gradient(y, v).numpy().tolist() == [2.0, 4.0]
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
for option in ("BroadcastGlobalVariablesHook", "nonsense"):
    try:
        getattr(hvd, option)
    except AttributeError as error:
        print("ABSENT", error)
hvd.shutdown()
hvd.init()
print("AGAIN", hvd.allreduce(x, op=hvd.Sum).numpy().tolist())
"""


def test_one_process_without_a_launcher() -> None:
    done = run(ONE)
    assert done.returncode == 0, done.stderr
    assert "BEFORE Sirtaki is not initialized; call init() first" in done.stdout
    assert "AGAIN [1.0, 2.0]" in done.stdout
    assert "'BroadcastGlobalVariablesHook': for sessions of TensorFlow 1" in done.stdout


#: Errors of Python in a graph, of which TensorFlow keeps only the text.
NOTED = """
import gc, weakref
import sirtaki
from sirtaki.tensorflow import horovod_errors
from sirtaki.tensorflow._errors import noting_error, to_builtin_error, with_tensorflow_type

class Large:
    pass

def made():
    return sirtaki.MismatchError("tensor 'a' differs", 1, "a")

def in_a_graph(make):
    large = Large()
    large_ones.append(weakref.ref(large))
    try:
        with noting_error():
            raise make()
    except sirtaki.MismatchError as error:
        return RuntimeError("in a graph: " + str(error))

def kind(make):
    try:
        with horovod_errors():
            raise make()
    except Exception as error:
        return type(error).__name__

for make in made, lambda: with_tensorflow_type(made()):
    large_ones = []
    print(kind(lambda: in_a_graph(make)))
    with horovod_errors():
        later = in_a_graph(make)
        gc.collect()
        print([one() for one in large_ones])
    print(kind(lambda: later))
to_builtin_error(made())
print(kind(lambda: RuntimeError(str(made()))))
"""


def test_an_error_of_a_graph_is_found_again_in_its_context_alone() -> None:
    done = run(NOTED)
    assert done.returncode == 0, done.stderr
    each = ["MismatchError", "[None, None]", "RuntimeError"]
    assert done.stdout.splitlines() == [*each, *each, "RuntimeError"]


def test_a_traced_function_of_an_elastic_job_opens_its_streams_when_it_runs() -> None:
    program = (
        "import tensorflow as tf, sirtaki.tensorflow as hvd\n"
        "from sirtaki import _core\n"
        "from unittest import mock\n"
        "v = tf.Variable(3.0)\n"
        "def gradient():\n"
        "    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:\n"
        "        y = v * v\n"
        "    return tape.gradient(y, v)\n"
        "def opened():\n"
        "    return [call.args[0] for call in stream.call_args_list]\n"
        "@tf.function\n"
        "def step():\n"
        "    first = gradient()\n"
        "    tf.py_function(lambda: print('BETWEEN', opened()), [], [])\n"
        "    return first, gradient()\n"
        "elastic = mock.patch('sirtaki.basics.is_elastic', return_value=True)\n"
        "with elastic, mock.patch('sirtaki._core.Stream', side_effect=_core.Stream) as stream:\n"
        "    for session in range(2):\n"
        "        hvd.init()\n"
        "        step.get_concrete_function()\n"
        "        print('TRACED', opened())\n"
        "        print('STEP', *map(float, step()), opened())\n"
        "        hvd.shutdown()\n"
        "        stream.reset_mock()\n"
    )
    done = run(program)
    one, two = ["tensorflow.tape.0"], ["tensorflow.tape.0", "tensorflow.tape.1"]
    session = ["TRACED []", f"BETWEEN {one}", f"STEP 6.0 6.0 {two}"]
    assert done.stdout.splitlines() == session * 2, done.stderr


def test_a_step_of_a_new_rank_that_others_do_not_make_names_the_rule() -> None:
    program = (
        "import tensorflow as tf, sirtaki.tensorflow as hvd\n"
        "from sirtaki import _growth, errors\n"
        "from unittest import mock\n"
        "hvd.init()\n"
        "@tf.function\n"
        "def step(v):\n"
        "    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:\n"
        "        y = v * v\n"
        "    return tape.gradient(y, v)\n"
        "v = tf.Variable(3.0)\n"
        "stuck = mock.patch('sirtaki._core.Stream', side_effect=errors.StuckError('stuck'))\n"
        "elastic = mock.patch('sirtaki.basics.is_elastic', return_value=True)\n"
        "for fresh in (True, False):\n"
        "    with elastic, stuck, mock.patch.object(_growth._state, 'fresh', fresh):\n"
        "        try:\n"
        "            step(v)\n"
        "        except tf.errors.OpError as error:\n"
        "            print('stuck;' in str(error), 'it may make only those steps that reset callbacks' in str(error))\n"
    )
    done = run(program)
    assert done.stdout.splitlines() == ["True True", "False False"], done.stderr


def test_a_tape_refuses_local_updates() -> None:
    program = (
        "import tensorflow as tf, sirtaki.tensorflow as hvd\n"
        "hvd.init()\n"
        "v = tf.Variable(1.0)\n"
        "with hvd.DistributedGradientTape(tf.GradientTape()) as tape:\n"
        "    y = v * v\n"
        "print('GRADIENT', float(tape.gradient(y, v)))\n"
    )
    refused = run(program, SIRTAKI_LOCAL_UPDATES="auto")
    assert 'local.updates is "auto", and a tape does not see the steps' in refused.stderr
    assert "GRADIENT 2.0" in run(program, SIRTAKI_LOCAL_UPDATES="1").stdout


def test_keras_on_other_frameworks_is_refused() -> None:
    done = run("import keras; keras.backend.backend = lambda: 'jax'; import sirtaki.keras")
    assert "Keras runs on jax; sirtaki.keras serves TensorFlow and torch" in done.stderr


#: Parameters of horovod.tensorflow and horovod.keras 0.28.1, in order.
SIGNATURES = """
import inspect, sirtaki.tensorflow as tensorflow, sirtaki.keras as keras
DEVICES = "device_dense device_sparse"
SCALES = "prescale_factor postscale_factor"
GROUPS = "num_groups groups"
for module, name, given in (
    (tensorflow, "allreduce", f"tensor average {DEVICES} compression op {SCALES} name process_set ignore_name_scope"),
    (tensorflow, "grouped_allreduce",
     f"tensors average {DEVICES} compression op {SCALES} process_set ignore_name_scope name"),
    (tensorflow, "allgather", "tensor name ignore_name_scope process_set"),
    (tensorflow, "grouped_allgather", "tensors name ignore_name_scope process_set"),
    (tensorflow, "broadcast", "tensor root_rank name ignore_name_scope process_set"),
    (tensorflow, "broadcast_", "variables root_rank name process_set"),
    (tensorflow, "broadcast_variables", "variables root_rank process_set inplace"),
    (tensorflow, "broadcast_global_variables", "root_rank"),
    (tensorflow, "alltoall", "tensor splits name ignore_name_scope process_set"),
    (tensorflow, "reducescatter", f"tensor device_dense compression op name process_set ignore_name_scope {SCALES}"),
    (tensorflow, "grouped_reducescatter", f"tensors device_dense compression op process_set {SCALES}"),
    (tensorflow, "broadcast_object", "obj root_rank session name process_set"),
    (tensorflow, "broadcast_object_fn", "root_rank session name process_set"),
    (tensorflow, "allgather_object", "obj session name process_set"),
    (tensorflow, "size_op", "process_set_id name"),
    (tensorflow, "process_set_included_op", "process_set_id name"),
    (tensorflow, "rank_op", "name"),
    (tensorflow, "DistributedGradientTape", f"gradtape {DEVICES} compression sparse_as_dense op "
     f"gradient_predivide_factor {GROUPS} process_set scale_local_gradients"),
    (tensorflow, "PartialDistributedGradientTape", f"gradtape {DEVICES} compression sparse_as_dense op "
     f"gradient_predivide_factor {GROUPS} process_set local_layers scale_local_gradients"),
    (tensorflow, "DistributedOptimizer", f"optimizer name use_locking {DEVICES} compression sparse_as_dense "
     "backward_passes_per_step op gradient_predivide_factor average_aggregated_gradients "
     f"{GROUPS} process_set scale_local_gradients"),
    (keras, "DistributedOptimizer", f"optimizer name {DEVICES} compression sparse_as_dense gradient_predivide_factor "
     f"op {GROUPS} backward_passes_per_step average_aggregated_gradients process_set scale_local_gradients"),
    (keras, "PartialDistributedOptimizer", f"optimizer name {DEVICES} compression sparse_as_dense "
     "gradient_predivide_factor op groups process_set local_layers scale_local_gradients"),
    (keras, "allreduce", f"value name average {SCALES} op compression"),
    (keras, "allgather", "value name"),
    (keras, "broadcast", "value root_rank name"),
    (keras, "reducescatter", "value name op"),
    (keras, "load_model", "filepath custom_optimizers custom_objects compression legacy_opts"),
    (keras.callbacks, "BroadcastGlobalVariablesCallback", "root_rank device local_variables"),
    (keras.callbacks, "MetricAverageCallback", "device"),
    (keras.callbacks, "LearningRateWarmupCallback",
     "initial_lr warmup_epochs momentum_correction steps_per_epoch verbose"),
    (keras.callbacks, "LearningRateScheduleCallback",
     "initial_lr multiplier start_epoch end_epoch staircase momentum_correction steps_per_epoch"),
):
    ours = list(inspect.signature(getattr(module, name)).parameters)
    if ours[: len(given.split())] != given.split():
        print("DIFFERS", module.__name__, name, ours)
print("COMPARED")
"""


def test_functions_have_the_parameters_of_horovod() -> None:
    done = run(SIGNATURES)
    assert "COMPARED" in done.stdout, done.stderr
    assert "DIFFERS" not in done.stdout, done.stdout


def test_tensorflow_before_sirtaki_leaves_the_handshake_of_torchrun_its_own_openssl() -> None:
    pytest.importorskip("tensorflow")
    done = run("import tensorflow\nfrom sirtaki import _core\nprint(len(_core.key_pair()))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2"
