"""TensorFlow's adapter on 2 to 4 ranks; few jobs, because importing TensorFlow takes long."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("case", case_names("tensorflow_cases"))
@pytest.mark.parametrize("np", [2, 3, 4])
def test_tensorflow(np: int, case: str) -> None:
    check_case("tensorflow_cases", np, case)


@pytest.mark.parametrize("case", case_names("tensorflow_gradient_cases"))
@pytest.mark.parametrize("np", [2, 3, 4])
def test_tensorflow_gradients(np: int, case: str) -> None:
    check_case("tensorflow_gradient_cases", np, case)


def test_a_lost_rank_ends_every_operation(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(LOST)
    output = launch(2, str(script), limit=LIMIT_SECONDS).stdout
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
    output = launch(2, str(script), limit=LIMIT_SECONDS, options=options).stdout
    assert len(re.findall(r"STALLED .*only\.[01]", output)) == 2, output
