"""The adapter for TensorFlow on 3 ranks; few jobs, because importing TensorFlow takes long."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from rank_support import case_names, check_case, launch

LIMIT_SECONDS = 120

LOST = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf, sirtaki.tensorflow as hvd
hvd.init()
weights = tf.Variable(tf.zeros([1000]))
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights * weights)
    return hvd.DistributedGradientTape(tape).gradient(loss, weights)
step()
if hvd.rank() == 1:
    os._exit(3)
for call in (step, lambda: hvd.allreduce(weights)):
    try:
        with hvd.horovod_errors():
            call()
    except hvd.HorovodInternalError as error:
        print("LOST", type(error).__name__, error.rank, flush=True)
"""


@pytest.mark.parametrize("case", case_names("tensorflow.tensorflow_cases"))
@pytest.mark.parametrize("np", [3])
def test_tensorflow(np: int, case: str) -> None:
    check_case("tensorflow.tensorflow_cases", np, case)


@pytest.mark.parametrize("case", case_names("tensorflow.tensorflow_gradient_cases"))
@pytest.mark.parametrize("np", [3])
def test_tensorflow_gradients(np: int, case: str) -> None:
    check_case("tensorflow.tensorflow_gradient_cases", np, case)


@pytest.mark.parametrize("case", case_names("tensorflow.tensorflow_horovod_cases"))
@pytest.mark.parametrize("np", [3])
def test_programs_for_horovod(np: int, case: str) -> None:
    check_case("tensorflow.tensorflow_horovod_cases", np, case)


#: Overrides dlsym() to hide one symbol: a TensorFlow built with another C++ library than libstdc++ does not have it.
OTHER_LIBRARY = r"""
#include <dlfcn.h>
#include <string.h>
#include <initializer_list>
extern "C" void* dlsym(void* library, const char* name) noexcept {
  using Lookup = void* (*)(void*, const char*);
  static Lookup next = nullptr;
  for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
    if (next == nullptr) next = reinterpret_cast<Lookup>(dlvsym(RTLD_NEXT, "dlsym", version));
  }
  return strstr(name, "Device12ComputeAsync") != nullptr ? nullptr : next(library, name);
}
"""


@cache
def other_library() -> str:
    """Compiles OTHER_LIBRARY for preloading; returns its path."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, library = folder / "lookup.cc", folder / "lookup.so"
    source.write_text(OTHER_LIBRARY)
    compiler = os.environ.get("CXX", "g++")
    build = [compiler, "-std=c++20", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(build, check=True, timeout=LIMIT_SECONDS)
    return str(library)


@pytest.mark.parametrize("case", case_names("tensorflow.tensorflow_blocking_cases"))
@pytest.mark.parametrize("np", [3])
def test_kernels_that_block(np: int, case: str) -> None:
    check_case("tensorflow.tensorflow_blocking_cases", np, case, variables=(("LD_PRELOAD", other_library()),))


def test_a_lost_rank_ends_every_operation(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(LOST)
    output = launch(2, str(script), limit=LIMIT_SECONDS, warm=True).stdout
    assert re.findall(r"LOST (\w+ \w+)", output) == ["PeerLostError 1", "PeerLostError 1"], output


STALLED = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf, sirtaki.tensorflow as hvd
hvd.init()
hvd.barrier()
try:
    hvd.allreduce(tf.ones([2]), name=f"only.{hvd.rank()}")
except hvd.HorovodInternalError as error:
    print("STALLED", error, flush=True)
"""


def test_operations_that_never_meet_are_told(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(STALLED)
    options = ("--control-stall-warn", "1s", "--control-stall-fail", "3s")
    output = launch(2, str(script), limit=LIMIT_SECONDS, options=options, warm=True).stdout
    assert len(re.findall(r"STALLED .*only\.[01]", output)) == 2, output


STUCK = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf, sirtaki.tensorflow as hvd
hvd.init()
hvd.barrier()
weights = tf.Variable(tf.ones([3]), name="weights")
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights * weights)
    return hvd.DistributedGradientTape(tape).gradient(loss, weights)
step(), tf.function(step)()
only = lambda: hvd.allreduce(tf.ones([2]), name=f"only.{hvd.rank()}")
for wait in (only, tf.function(only), [step, tf.function(only)][hvd.rank()]):
    hvd.barrier()
    try:
        with hvd.horovod_errors():
            wait()
    except hvd.HorovodInternalError as error:
        print("STUCK", type(error).__name__, error, flush=True)
"""


@pytest.mark.parametrize("blocking", [False, True])
def test_ranks_that_wait_in_kernels_for_each_other_are_told(tmp_path: Path, blocking: bool) -> None:
    script = tmp_path / "program.py"
    script.write_text(STUCK)
    variables = (("LD_PRELOAD", other_library()),) if blocking else ()
    output = launch(2, str(script), limit=LIMIT_SECONDS, variables=variables, warm=not blocking).stdout
    told = re.findall(r"STUCK (\w+) .*every rank waits for something another rank has not submitted", output)
    assert told == ["StuckError"] * 6, output


def test_a_training_with_keras_ends_with_a_report() -> None:
    program = (
        "import keras, numpy as np, sirtaki.keras as hvd\n"
        "hvd.init()\n"
        "model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4, name='wide')])\n"
        "model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(), compression='int8:min=1'), 'mse')\n"
        "model.fit(np.ones((8, 8)), np.ones((8, 4)), verbose=0)\n"
    )
    done = launch(2, "-c", program, warm=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("sirtaki: report (") == 1, done.stdout
    assert "wide/kernel" in done.stdout
