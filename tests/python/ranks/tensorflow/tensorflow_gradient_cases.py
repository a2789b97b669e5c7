"""Gradients through the operations against differences and formulas; tapes; variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import sirtaki.tensorflow as hvd
from ranks.tensorflow.tensorflow_cases import refused, same

STEP = 1e-3


def weights(shape: Any, seed: int) -> tf.Tensor:
    """Returns the factors of this rank's loss."""
    return tf.constant(np.random.default_rng(100 * seed + hvd.rank()).normal(size=tuple(shape)))


def check(operation: Callable[[tf.Tensor], tf.Tensor], rows: int, factor: float = 1.0) -> None:
    """Compares the gradient with `factor` times the derivative of the summed losses of all ranks, by differences."""
    x = tf.constant(np.random.default_rng(hvd.rank()).normal(size=(rows, 2)))

    def loss(x: tf.Tensor) -> tf.Tensor:
        out = operation(x)
        return tf.reduce_sum(out * weights(out.shape if out.shape.is_fully_defined() else operation(x).shape, 1))

    with tf.GradientTape() as tape:
        tape.watch(x)
        local = loss(x)
    got = tape.gradient(local, x).numpy()
    largest = int(hvd.allreduce(tf.constant(rows), op=hvd.Max))
    for rank in range(hvd.size()):
        for place in np.ndindex(largest, 2):
            own = rank == hvd.rank() and place[0] < rows
            totals = []
            for sign in (1, -1):
                moved = x.numpy().copy()
                if own:
                    moved[place] += sign * STEP
                totals.append(float(hvd.allreduce(loss(tf.constant(moved)), op=hvd.Sum)))
            if own:
                difference = factor * (totals[0] - totals[1]) / (2 * STEP)
                assert abs(got[place] - difference) < 1e-6, (place, got[place], difference)


def case_gradient_of_allreduce() -> None:
    check(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), 2)
    check(hvd.allreduce, 2)
    check(lambda x: tf.add_n(hvd.grouped_allreduce([x, x * 2.0])), 2)


def case_gradient_of_allgather() -> None:
    check(lambda x: hvd.allgather(x * x), hvd.rank() + 1, 1 / hvd.size())
    check(lambda x: hvd.grouped_allgather([x, x[:1]])[1], hvd.rank() + 1, 1 / hvd.size())


def case_gradient_of_broadcast() -> None:
    check(lambda x: hvd.broadcast(x * x, hvd.size() - 1), 2, 1 / hvd.size())


def case_gradient_of_alltoall() -> None:
    check(lambda x: hvd.alltoall(x * 3.0), hvd.size())
    check(lambda x: hvd.alltoall(x, splits=[1] * hvd.size())[0], hvd.size())


def case_gradient_of_reducescatter() -> None:
    check(lambda x: hvd.reducescatter(x * x), hvd.size() + 1, hvd.size())
    check(lambda x: hvd.reducescatter(x, op=hvd.Sum, postscale_factor=2.0), hvd.size(), hvd.size())


def gradients(operation: Callable[[list[tf.Tensor]], Any], rows: int) -> list[np.ndarray]:
    """Returns gradients of two tensors of `rows` rows, equal in both modes; all results have the gradient rank + 1."""

    def both() -> list[tf.Tensor]:
        given = [tf.ones([rows, 2]), tf.ones([rows, 2], tf.float64)]
        with tf.GradientTape() as tape:
            tape.watch(given)
            results = operation(given)
        return tape.gradient(results, given, [tf.ones_like(r) * tf.cast(hvd.rank() + 1, r.dtype) for r in results])

    eager, graph = both(), tf.function(both)()
    for one, other in zip(eager, graph, strict=True):
        assert np.array_equal(one.numpy(), other.numpy())
    return [one.numpy() for one in eager]


def case_gradients_have_the_factors_of_horovod() -> None:
    """Horovod averages in allgather and broadcast; it gathers in reducescatter, times the ranks for sums."""
    everybody, some = hvd.ProcessSet(), hvd.ProcessSet([0, hvd.size() - 1])
    for process_set in (everybody, some):
        if not process_set.included():
            continue
        at = {"process_set": process_set}
        ranks, count = process_set.ranks, process_set.size()
        mean = sum(rank + 1 for rank in ranks) / count
        joined = np.repeat([rank + 1.0 for rank in ranks], 2)[:, None]
        root = ranks[-1]
        wanted: list[tuple[Callable[[list[tf.Tensor]], Any], int, Any]] = [
            (lambda x, at=at: [hvd.allgather(t, **at) for t in x], 3, mean),
            (lambda x, at=at: hvd.grouped_allgather(x, **at), 3, mean),
            (lambda x, at=at, r=root: [hvd.broadcast(t, r, **at) for t in x], 3, mean if hvd.rank() == root else 0),
            (lambda x, at=at: [hvd.allreduce(t, **at) for t in x], 3, mean),
            (lambda x, at=at: hvd.grouped_allreduce(x, op=hvd.Sum, **at), 3, mean * count),
        ]
        for op, factor in ((hvd.Average, 1), (hvd.Sum, count)):
            scales = {"prescale_factor": 0.5, "postscale_factor": 4.0, "op": op}
            wanted += [
                (lambda x, at=at, op=op: [hvd.reducescatter(t, op=op, **at) for t in x], 2 * count, joined * factor),
                (lambda x, at=at, op=op: hvd.grouped_reducescatter(x, op=op, **at), 2 * count, joined * factor),
                (lambda x, at=at, s=scales: hvd.grouped_reducescatter(x, **s, **at), 2 * count, joined * factor * 2),
            ]
        for place, (operation, rows, want) in enumerate(wanted):
            for got in gradients(operation, rows):
                assert np.allclose(got, want), (process_set, place, got, want)


def case_gradients_in_functions_are_those_of_eager_code() -> None:
    rows = hvd.size() + 1

    def gradient() -> tf.Tensor:
        x = tf.ones([rows, 2]) * (hvd.rank() + 1.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = hvd.allreduce(x * x) + hvd.broadcast(x, 0)
            y = tf.reduce_sum(out) + tf.reduce_sum(hvd.allgather(x) ** 2) + tf.reduce_sum(hvd.reducescatter(x) ** 2)
        return tape.gradient(y, x)

    assert np.allclose(gradient().numpy(), tf.function(gradient)().numpy())


def case_second_derivatives() -> None:
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(hvd.allreduce(x**3, op=hvd.Sum))
        first = inner.gradient(y, x)
    same(outer.gradient(first, x), 6.0 * np.array([1.0, 2.0]) * hvd.size(), "second")


def case_there_is_no_gradient_through_max() -> None:
    x = tf.ones([2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Max)
    refused(lambda: tape.gradient(y, x), NotImplementedError, "Average and Sum")


# ---- tapes ----


def tape_step(**choices: Any) -> tuple[Callable[[tf.Tensor], Any], list[tf.Variable]]:
    """Returns a function that computes gradients with factors that depend on the rank, and its variables."""
    variables = [
        tf.Variable(tf.ones([3]), name="a"),
        tf.Variable(tf.ones([2, 3]), name="b"),
        tf.Variable(1.0, name="c"),
    ]

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(variables[0] * x) + tf.reduce_sum(variables[1] * variables[1]) * x[0]
        return hvd.DistributedGradientTape(tape, **choices).gradient(y, variables)

    return step, variables


def case_tape_averages_in_both_modes() -> None:
    step, _ = tape_step()
    mean = (hvd.size() + 1) / 2
    function = tf.function(step)
    for one in (step, function, function, step):
        a, b, c = one(tf.ones([3]) * (hvd.rank() + 1.0))
        same(a, np.full(3, mean), "a")
        same(b, np.full((2, 3), 2 * mean), "b")
        assert c is None


def case_tape_sums_scales_and_takes_other_operators() -> None:
    x = tf.ones([3]) * (hvd.rank() + 1.0)
    total = sum(range(1, hvd.size() + 1))
    for choices, want in (
        ({"op": hvd.Sum}, total),
        ({"gradient_predivide_factor": 2.0}, total / hvd.size()),
        ({"op": hvd.Max}, hvd.size()),
        ({"compression": hvd.Compression.fp16}, total / hvd.size()),
        ({"compression": "int8"}, total / hvd.size()),
        ({"compression": {"a*": "fp16"}}, total / hvd.size()),
        ({"compression": "none"}, total / hvd.size()),
    ):
        step, _ = tape_step(**choices)
        for one in (step, tf.function(step)):
            assert np.allclose(one(x)[0].numpy(), want, rtol=0.02), choices
    tensors = hvd_stats()
    assert any(row["codec"] == "fp16" for row in tensors), tensors


def hvd_stats() -> list[dict[str, Any]]:
    """Returns the statistics rows of all tensors of all streams."""
    from sirtaki import stats

    return [row for stream in stats()["tensors"].values() for row in stream]


def case_tape_with_a_compressor_of_its_own() -> None:
    class Halves:
        @staticmethod
        def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
            return tf.cast(tensor, tf.float64), tensor.dtype

        @staticmethod
        def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
            return tf.cast(tensor, context)

    step, _ = tape_step(compression=Halves)
    for one in (step, tf.function(step)):
        same(one(tf.ones([3]) * (hvd.rank() + 1.0))[0], np.full(3, (hvd.size() + 1) / 2), "own")


def case_tape_among_some_ranks() -> None:
    some = hvd.ProcessSet([0, hvd.size() - 1])
    step, _ = tape_step(process_set=some)
    if some.included():
        same(step(tf.ones([3]) * (hvd.rank() + 1.0))[0], np.full(3, (hvd.size() + 1) / 2), "set")
    else:
        # A rank outside of the set keeps its own gradient.
        same(step(tf.ones([3]) * (hvd.rank() + 1.0))[0], np.full(3, hvd.rank() + 1.0), "own")


def case_local_sources_keep_their_gradients() -> None:
    shared, own = tf.Variable(tf.ones([2])), tf.Variable(tf.ones([2]))
    slices = tf.Variable(tf.ones([3, 2]))
    rank, size = hvd.rank(), hvd.size()
    for scaled in (True, False):

        def step(scaled: bool = scaled) -> Any:
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(shared * own * (rank + 1.0)) + tf.reduce_sum(tf.gather(slices, [1])) * (rank + 1.0)
            tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scaled)
            for source in (own, slices):
                tape.register_local_source(source)
            return tape.gradient(y, {"own": own, "shared": shared, "slices": slices}, use_generic_names=True)

        for one in (step, tf.function(step)):
            got = one()
            same(got["shared"], np.full(2, (size + 1) / 2), "shared")
            same(got["own"], np.full(2, np.float32((rank + 1) / (size if scaled else 1))), "own")
            same(got["slices"].values, np.full((1, 2), np.float32((rank + 1) / (size if scaled else 1))), "slices")


def case_partial_tape_leaves_layers_alone() -> None:
    import keras

    layers = [keras.layers.Dense(2, kernel_initializer="ones"), keras.layers.Dense(1, kernel_initializer="ones")]
    model = keras.Sequential([keras.layers.Input((2,)), *layers])
    with tf.GradientTape(persistent=True) as tape:
        y = tf.reduce_sum(model(tf.ones([1, 2]))) * (hvd.rank() + 1.0)
    for local in (layers[1], [layers[1]]):
        partial = hvd.PartialDistributedGradientTape(tape, local_layers=local, scale_local_gradients=False)
        got = partial.gradient(y, model.trainable_variables)
        same(got[0], np.full((2, 2), (hvd.size() + 1) / 2), "shared kernel")
        same(got[2], np.full((2, 1), 2 * (hvd.rank() + 1.0)), "local kernel")
        own, others = partial.get_local_and_global_gradients(y, model.trainable_variables)
        assert [v.path for v, _ in own] == [v.path for v in layers[1].trainable_variables]
        assert [v.path for v, _ in others] == [v.path for v in layers[0].trainable_variables]
    refused(lambda: hvd.PartialDistributedGradientTape(tape, local_layers=["dense"]), ValueError, "local_layers")


def case_tape_gathers_or_fills_indexed_slices() -> None:
    table = tf.Variable(tf.zeros([hvd.size() + 1, 2]), name="table")

    def step(dense: bool) -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.gather(table, [0, hvd.rank() + 1]))
        return hvd.DistributedGradientTape(tape, sparse_as_dense=dense).gradient(y, [table])[0]

    want = np.full((hvd.size() + 1, 2), 1 / hvd.size())
    want[0] = 1.0
    for dense in (False, True):
        for one in (step, tf.function(step)):
            got = one(dense)
            assert isinstance(got, tf.Tensor) == dense
            assert np.allclose(tf.convert_to_tensor(got).numpy(), want), got


def case_two_tapes_of_one_function_do_not_mix() -> None:
    variable = tf.Variable(tf.zeros([1000]), name="shared")

    @tf.function
    def both(x: tf.Tensor) -> Any:
        grads = []
        for factor in (1.0, 10.0):
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(variable * x) * factor
            grads.append(hvd.DistributedGradientTape(tape).gradient(y, variable))
        return grads

    mean = (hvd.size() + 1) / 2
    for _ in range(10):
        first, second = both(tf.ones([1000]) * (hvd.rank() + 1.0))
        same(first, np.full(1000, mean), "first")
        same(second, np.full(1000, 10 * mean), "second")


def case_a_function_that_is_traced_again_goes_on() -> None:
    step, _ = tape_step()
    function = tf.function(step)
    mean = (hvd.size() + 1) / 2
    for length in (3, 1, 3):
        same(function(tf.ones([length]) * (hvd.rank() + 1.0))[0], np.full(3, mean), length)


def case_a_step_left_half_way_is_given_up_by_all() -> None:
    from sirtaki.tensorflow import gradients
    from sirtaki.tensorflow._op_calls import call

    variables = [tf.Variable(tf.ones([2]), name=f"left.{i}") for i in range(2)]
    reducer = gradients.GradientReducer("left", gradients.choose())
    grads = [tf.ones([2]) * (hvd.rank() + 1.0)] * 2
    mean = np.full(2, (hvd.size() + 1) / 2)
    step = tf.function(lambda: reducer.reduce(grads, variables))
    same(step()[0], mean, "before")
    if hvd.rank() == hvd.size() - 1:
        stream = next(s for (name, _), s in gradients._streams._by_key.items() if name == "left")
        call("sirtaki_ready", grads[1], call("sirtaki_step_number"), stream=stream.id, index=1, count=2)
    else:
        # The next step of the last rank tells the others, which wait in the step that it left.
        refused(step, tf.errors.AbortedError, "left a step")
    same(step()[0], mean, "after")


def case_compression_that_cannot_be_is_refused() -> None:
    with tf.GradientTape() as tape:
        pass
    for choices, part in (
        ({"compression": "group_topk:rate=0.1,momentum=0.9"}, "momentum"),
        ({"compression": "fp16", "op": hvd.Max}, "compression"),
        ({"compression": "fp16", "process_set": hvd.ProcessSet([0])}, "process set"),
    ):
        refused(lambda c=choices: hvd.DistributedGradientTape(tape, **c), NotImplementedError, part)
    for choices, part in (
        ({"compression": "nonsense"}, "nonsense"),
        ({"gradient_predivide_factor": 0}, "gradient_predivide_factor"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "Average"),
    ):
        refused(lambda c=choices: hvd.DistributedGradientTape(tape, **c), ValueError, part)


def case_variables_are_equalised() -> None:
    dtypes = [tf.float32, tf.int64, tf.bool, tf.uint32, tf.complex64, tf.bfloat16]
    variables = [tf.Variable(tf.cast(tf.fill([3], hvd.rank() % 2), dtype)) for dtype in dtypes]
    for root in (1, 0):
        for variable in variables:
            variable.assign(tf.cast(tf.fill([3], hvd.rank() % 2), variable.dtype))
        hvd.broadcast_variables(variables, root)
        for variable in variables:
            assert variable.numpy().astype(np.int64).tolist() == [root] * 3, variable


def case_torch_and_tensorflow_meet_in_one_job() -> None:
    import torch

    import sirtaki.torch as other

    if hvd.rank() == 0:
        got = other.allreduce(torch.ones(3), name="mixed", op=other.Sum).numpy()
    else:
        got = hvd.allreduce(tf.ones([3]), name="mixed", op=hvd.Sum).numpy()
    assert got.tolist() == [float(hvd.size())] * 3


def case_ranks_join() -> None:
    if hvd.rank() != 0:
        total = hvd.allreduce(tf.ones(2), name="joined", op=hvd.Sum)
        assert total.numpy().tolist() == [hvd.size() - 1.0] * 2
        assert hvd.allgather(tf.ones((1, 2))).shape == (hvd.size() - 1, 2)
        hvd.barrier()
    assert 0 <= hvd.join() < hvd.size()
