"""Metrics in the logs of Keras, on two ranks."""

from __future__ import annotations

import pytest
from rank_support import launch

PROGRAM = """
import csv, sys, tempfile
import keras, numpy as np
import sirtaki.keras as hvd

hvd.init()
def fit(*callbacks):
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), compression="int8:min=1")
    model.compile(optimizer, "mse")
    first = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    data = np.ones((8, 8)), np.ones((8, 4))
    return model.fit(*data, epochs=2, batch_size=4, verbose=0, callbacks=[*first, *callbacks]).history

with tempfile.NamedTemporaryFile("r") as file:
    found = fit(hvd.callbacks.MetricsCallback(), keras.callbacks.CSVLogger(file.name))
    logged = list(csv.DictReader(file))
assert len(logged) == 2 and {key for key in logged[0] if key[:4] not in ("epoc", "val_")} == set(found), (logged, found)
names = {"sirtaki/step_seconds", "sirtaki/exposed_seconds", "sirtaki/wire_bytes", "sirtaki/compression_ratio"}
assert found.keys() == {"loss", *names}, found
assert 0 < found["sirtaki/wire_bytes"][0] < found["sirtaki/wire_bytes"][1], found
assert found["sirtaki/compression_ratio"][0] > 1.5, found

every = fit(hvd.callbacks.MetricsCallback(None, ""))
assert every["size"] == [2, 2] and min(every["codec.int8.tensors"]) >= 1, every
assert "codec" not in every

picked = fit(hvd.callbacks.MetricsCallback(["codec.int8.tensors", "codec.{codec}.step_bytes"], ""))
assert "codec.int8.tensors" in picked and "codec.int8.step_bytes" in picked, picked
other = [name for name in picked if name.endswith(".tensors")]
assert other == ["codec.int8.tensors"], other
try:
    hvd.callbacks.MetricsCallback(["codec"])
except ValueError as error:
    assert "'codec' is not a number of sirtaki.metrics(): " in str(error), error
else:
    raise AssertionError
print("GOOD", flush=True)
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_metrics_are_in_the_logs_of_keras(backend: str) -> None:
    pytest.importorskip(backend)
    done = launch(2, "-c", PROGRAM, variables=(("KERAS_BACKEND", backend),), warm=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("GOOD") == 2
