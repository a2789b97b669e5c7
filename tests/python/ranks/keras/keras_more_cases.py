"""More of Keras on two ranks: saved state, schedules, mixed precision, sparse gradients, compression, errors."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

import sirtaki.keras as hvd
from ranks.keras.keras_cases import (
    BATCH,
    STEPS,
    TORCH,
    against_one_process,
    data,
    fit,
    network,
    refused,
    same_weights,
    share,
)
from ranks.keras.keras_local_cases import differ, loop_of


def case_clipping_sees_combined_gradients() -> None:
    against_one_process(lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05))


def case_callback_starts_all_from_the_same_weights_and_state() -> None:
    root = hvd.size() - 1
    model = network(seed=hvd.rank())
    if hvd.rank() == root:
        before = model.get_weights()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0, momentum=0.9))
    fit(model, optimizer, distributed=True, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(root)])
    if hvd.rank() == root:
        for a, b in zip(before, model.get_weights(), strict=True):
            assert np.array_equal(a, b)
    for values in model.get_weights():
        gathered = hvd.allgather(values[np.newaxis])
        assert np.array_equal(gathered, np.broadcast_to(gathered[:1], gathered.shape))


def case_the_callback_leaves_local_variables_alone() -> None:
    model = network(seed=hvd.rank())
    own = model.trainable_variables[0]
    before = keras.ops.convert_to_numpy(own).copy()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[own])
    fit(model, optimizer, distributed=True, callbacks=[callback])
    assert np.array_equal(keras.ops.convert_to_numpy(own), before)
    last = hvd.allgather(keras.ops.convert_to_numpy(model.trainable_variables[2])[np.newaxis])
    assert np.array_equal(last, np.broadcast_to(last[:1], last.shape))
    gathered = hvd.allgather(before[np.newaxis])
    assert not np.array_equal(gathered[0], gathered[-1])


def case_schedules_of_the_learning_rate() -> None:
    rates: list[float] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

    callbacks = [
        hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(0.4, 0.1, start_epoch=2, end_epoch=3),
        hvd.callbacks.LearningRateScheduleCallback(0.4, lambda epoch: 0.01 * epoch, start_epoch=3),
        Watch(),
    ]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.4, momentum=0.9))
    fit(network(), optimizer, distributed=True, epochs=4, callbacks=callbacks)
    size = hvd.size()
    warm = [0.4 / size * ((i + 1) * (size - 1) / (2 * STEPS) + 1) for i in range(2 * STEPS)]
    assert np.allclose(rates, [*warm, *[0.04] * STEPS, *[0.012] * STEPS], rtol=1e-5), rates


def case_saved_models_load_with_the_plain_class() -> None:
    model = network()
    fit(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), distributed=True)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.keras"))
        model.save(path)
        plain = keras.models.load_model(path)
        assert type(plain.optimizer) is type(keras.optimizers.Adam())
        assert int(plain.optimizer.iterations) == int(model.optimizer.iterations) == 2 * STEPS
        again = hvd.load_model(path)
        x, y = data()
        plain.fit(x, y, batch_size=BATCH * hvd.size(), epochs=1, shuffle=False, verbose=0)
        again.fit(share(x), share(y), batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
        same_weights(plain, again, 1e-4)


def case_the_best_model_is_written_by_one_rank() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "best.keras")
        callbacks = [
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.BestModelCheckpoint(str(path), monitor="loss"),
        ]
        fit(network(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), distributed=True, callbacks=callbacks)
        assert path.exists() == (hvd.rank() == 0)


def overflow_on_one_rank(optimizer: Any, model: Any, callbacks: Any = ()) -> None:
    x, y = data()
    x, y = share(x), share(y).copy()
    if hvd.rank() == 0:
        y[BATCH] = np.inf
    model.compile(optimizer, loss="mse")
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0, callbacks=list(callbacks))
    for values in model.get_weights():
        assert np.isfinite(values).all()
        gathered = hvd.allgather(values[np.newaxis])
        assert np.array_equal(gathered, np.broadcast_to(gathered[:1], gathered.shape))


def case_all_ranks_skip_a_step_that_overflows_on_one() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
        assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        overflow_on_one_rank(optimizer, network())
        model = network()
    finally:
        keras.config.set_dtype_policy("float32")
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    overflow_on_one_rank(inner, model, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


def case_a_loss_scale_around_it_is_refused() -> None:
    if TORCH:
        return  # torch gives no sign of a loss scale
    keras.config.set_dtype_policy("mixed_float16")
    model = network()
    keras.config.set_dtype_policy("float32")
    refused(
        lambda: fit(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), distributed=True),
        NotImplementedError,
        "LossScaleOptimizer",
    )


def case_bfloat16_trains_with_compression_and_with_local_updates() -> None:
    """Accumulates and clips, goes on from a saved model, and needs no loss scale."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        alone = network()
        how = {"gradient_accumulation_steps": 2, "global_clipnorm": 1.0}
        first = fit(alone, keras.optimizers.SGD(0.1, **how), distributed=False, epochs=4).history["loss"]
        for choice in ({"compression": "int8:min=1,ndim=1"}, {"local_updates": "fixed:steps=2,delay=1,guard=off"}):
            model = network(seed=hvd.rank())
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, **how), **choice)
            assert not isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
            callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
            losses = fit(model, optimizer, distributed=True, epochs=3, callbacks=callbacks).history["loss"]
            assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
            assert not differ(model.trainable_variables)
            with tempfile.TemporaryDirectory() as folder:
                model.save(path := Path(folder, "model.keras"))
                again = hvd.load_model(path, **choice)
            losses += fit(again, again.optimizer, distributed=True, callbacks=callbacks).history["loss"]
            assert losses[-1] < losses[0] / 2, (losses, first)
    finally:
        keras.config.set_dtype_policy("float32")


def case_embeddings_are_those_of_one_process() -> None:
    def model() -> Any:
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Input((2,)), keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
        return keras.Sequential(layers)

    rows = np.random.default_rng(5).integers(0, 9, (STEPS * hvd.size() * BATCH, 2))
    targets = rows.sum(1, keepdims=True).astype(np.float32)

    def trained(optimizer: Any, distributed: bool) -> Any:
        one = model()
        one.compile(optimizer, loss="mse")
        x, y = (share(rows), share(targets)) if distributed else (rows, targets)
        batch = BATCH if distributed else BATCH * hvd.size()
        one.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
        return one

    def together(optimizer: Any, dense: bool) -> Any:
        return trained(hvd.DistributedOptimizer(optimizer, sparse_as_dense=dense), True)

    alone = trained(keras.optimizers.SGD(0.01), False)
    for dense in (False, True):
        same_weights(alone, together(keras.optimizers.SGD(0.01), dense), 1e-4)
    # Adam of Keras treats a row that occurs twice as two gradients; after a reduction over ranks each row occurs once.
    same_weights(together(keras.optimizers.Adam(0.01), False), together(keras.optimizers.Adam(0.01), True), 1e-4)


def case_gradients_travel_compressed() -> None:
    from sirtaki import stats

    for compression, codec in (
        (hvd.Compression.fp16, "fp16"),
        ("int8:min=1,ndim=1", "int8"),
        ({"*kernel*": "bf16"}, "bf16"),
    ):
        alone, together = network(), network()
        fit(alone, keras.optimizers.SGD(0.05), distributed=False)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), compression=compression)
        fit(together, optimizer, distributed=True)
        same_weights(alone, together, 0.05)
        rows = [row["codec"] for stream in stats()["tensors"].values() for row in stream]
        assert codec in rows, (codec, rows)


def case_values_over_all_ranks() -> None:
    rank, size = hvd.rank(), hvd.size()
    assert float(hvd.allreduce(rank + 1.0, op=hvd.Sum)) == sum(range(1, size + 1))
    assert float(hvd.allreduce(np.float64(rank), average=True)) == (size - 1) / 2
    halved = hvd.allreduce(np.full(3, 1.0 + 2.0**-12), compression=hvd.Compression.fp16)
    assert (halved.dtype, halved.tolist()) == (np.float64, [1.0] * 3)
    assert hvd.allgather(np.full(rank + 1, rank)).shape == (size * (size + 1) // 2,)
    assert float(hvd.broadcast(keras.ops.convert_to_tensor([float(rank)]), size - 1)[0]) == size - 1
    assert hvd.reducescatter(np.arange(float(size)), op=hvd.Sum).tolist() == [rank * size]
    assert hvd.broadcast_object([rank], 0) == [0]
    hvd.barrier()


def case_wrong_arguments_are_refused() -> None:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    for call, part in (
        (lambda: hvd.DistributedOptimizer("sgd"), "keras.optimizers.Optimizer"),
        (lambda: hvd.DistributedOptimizer(optimizer), "already"),
        (lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), compression="nonsense"), "nonsense"),
        (lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), op="sum"), "op is"),
        (lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=0), "backward_passes"),
        (lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), gradient_predivide_factor=-1.0), "predivide"),
        (lambda: hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=0), "warmup_epochs"),
    ):
        refused(call, ValueError, part)


def case_loops_of_the_program_apply_combined_gradients() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    before = model.get_weights()
    variables = model.trainable_variables
    for _ in range(2):
        optimizer.apply([keras.ops.ones(v.shape) * (hvd.rank() + 1.0) for v in variables], variables)
    for a, b in zip(before, model.get_weights(), strict=True):
        assert np.allclose(b, a - (hvd.size() + 1) / 2, atol=1e-5), (a, b)


def case_the_first_step_of_a_loop_makes_the_optimizers_variables() -> None:
    """The first step is compressed like later ones."""
    from sirtaki import stats

    before = set(stats()["tensors"])
    alone, together = network(), network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), compression="int8:min=1,ndim=1")
    x, y = data()
    for model, mine, whole in ((alone, keras.optimizers.SGD(0.05), True), (together, optimizer, False)):
        step = loop_of(model, mine, traced=not whole)
        inputs, targets = (x, y) if whole else (share(x), share(y))
        batch = BATCH * (hvd.size() if whole else 1)
        assert not mine.built
        for i in range(STEPS):
            at = slice(i * batch, (i + 1) * batch)
            step(keras.ops.convert_to_tensor(inputs[at]), keras.ops.convert_to_tensor(targets[at]))
    same_weights(alone, together, 0.05)
    opened = [rows for name, rows in stats()["tensors"].items() if name not in before]
    assert [{row["codec"] for row in rows} for rows in opened] == [{"int8"}], opened


def case_operators_and_process_sets() -> None:
    rank, size = hvd.rank(), hvd.size()
    everybody, mine = range(1, size + 1), [rank + 1]
    single = hvd.ProcessSet([rank])
    for how, expected in (
        ({"op": hvd.Sum}, sum(everybody)),
        ({"op": hvd.Min}, min(everybody)),
        ({"op": hvd.Max}, max(everybody)),
        ({"op": hvd.Product}, float(np.prod(list(everybody)))),
        ({"process_set": single}, mine[0]),
    ):
        for explicit in (False, True):
            model = network()
            before = model.get_weights()
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), **how)
            if explicit:
                variables = model.trainable_variables
                optimizer.apply([keras.ops.ones(v.shape) * (rank + 1.0) for v in variables], variables)
            else:
                slope_of(model, optimizer, rank + 1.0)
            for a, b in zip(before, model.get_weights(), strict=True):
                assert np.allclose(b, a - 0.5 * expected, atol=1e-5), (how, explicit, a - b)
    for op in (hvd.Min, hvd.Max, hvd.Product):
        for compression in ("int8", hvd.Compression.bf16):
            refused(
                lambda c=compression, o=op: hvd.DistributedOptimizer(keras.optimizers.SGD(), compression=c, op=o),
                NotImplementedError,
                "compression with op",
            )


def slope_of(model: Any, optimizer: Any, slope: float) -> None:
    """Makes a step of a model whose loss is linear with slope `slope`."""
    if TORCH:
        sum(keras.ops.sum(v) for v in model.trainable_variables).mul(slope).backward()
        optimizer.apply([v.value.grad for v in model.trainable_variables], model.trainable_variables)
        return
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = sum(keras.ops.sum(v) for v in model.trainable_variables) * slope
    optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)


def case_xla_is_turned_off_or_refused() -> None:
    if TORCH:
        return  # on torch jit_compile means torch.compile, which does not compile apply()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    fit(network(), optimizer, distributed=True, callbacks=callbacks, jit_compile=True)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    refused(
        lambda: fit(network(), optimizer, distributed=True, jit_compile=True), NotImplementedError, "jit_compile=False"
    )


def case_local_layers_keep_their_gradients() -> None:
    """PartialDistributedOptimizer and register_local_var: shared layers stay equal, local layers differ."""
    for choice in ("layers", "variable", "unscaled"):
        layers = [keras.layers.Dense(2, kernel_initializer="ones"), keras.layers.Dense(1, kernel_initializer="ones")]
        model = keras.Sequential([keras.layers.Input((2,)), *layers])
        optimizer = keras.optimizers.SGD(0.5)
        if choice == "layers":
            optimizer = hvd.PartialDistributedOptimizer(optimizer, local_layers=layers[1])
        else:
            optimizer = hvd.DistributedOptimizer(optimizer, scale_local_gradients=choice == "variable")
            for variable in layers[1].trainable_weights:
                optimizer.register_local_var(variable)
        model.compile(optimizer, lambda truth, guess: keras.ops.mean(guess), jit_compile=False)
        x = np.full((2, 2), hvd.rank() + 1.0, np.float32)
        model.fit(x, np.zeros((2, 1), np.float32), epochs=1, verbose=0)
        shared, own = (keras.ops.convert_to_numpy(layer.kernel) for layer in layers)
        mean = (hvd.size() + 1) / 2
        divisor = 1 if choice == "unscaled" else hvd.size()
        assert np.allclose(shared, 1 - 0.5 * mean), (choice, shared)
        assert np.allclose(own, 1 - 0.5 * 2 * (hvd.rank() + 1) / divisor), (choice, own)
    model.compile(optimizer="sgd")
    refused(
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), local_updates=4).register_local_var(layers[0].kernel),
        NotImplementedError,
        "local_updates",
    )
