# ruff: noqa: PT017  (no pytest on the ranks)
"""Operations on TensorFlow tensors, eager and in graphs, against the results of numpy from the inputs of all ranks."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import sirtaki.tensorflow as hvd

FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
INTEGERS = [tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64]
DTYPES = [*FLOATS, *INTEGERS, tf.bool]
SHAPES = [(17,), (5, 7), (3, 4, 5)]


def value(rank: int, shape: tuple[int, ...], dtype: tf.DType) -> np.ndarray:
    """Returns the input of a rank: small numbers, whose sums are exact in every dtype."""
    numbers = np.random.default_rng(rank).integers(0, 5, shape)
    return (numbers % 2 == 1) if dtype == tf.bool else numbers.astype(dtype.as_numpy_dtype)


def mine(shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    """Returns the input of this rank."""
    return tf.constant(value(hvd.rank(), shape, dtype))


def wide(shape: tuple[int, ...], dtype: tf.DType) -> np.ndarray:
    """Returns all inputs stacked, in float64 or bool."""
    kind = bool if dtype == tf.bool else np.float64
    return np.stack([value(r, shape, dtype).astype(kind) for r in range(hvd.size())])


def same(got: tf.Tensor, want: np.ndarray, what: object) -> None:
    assert tuple(got.shape) == want.shape, (what, got.shape, want.shape)
    assert np.array_equal(got.numpy().astype(np.float64), want.astype(np.float64)), (what, got, want)


def everywhere(make: Callable[[tuple[int, ...], tf.DType], tf.Tensor], dtypes: list[tf.DType]) -> dict[Any, Any]:
    """Returns results by (mode, shape, dtype); the operations of the graph are in flight together."""
    keys = [(shape, dtype) for shape in SHAPES for dtype in dtypes]
    results: dict[Any, Any] = {("eager", *key): make(*key) for key in keys}

    @tf.function
    def all_at_once() -> list[tf.Tensor]:
        return [make(*key) for key in keys]

    for _ in range(2):
        got = all_at_once()
    for key, result in zip(keys, got, strict=True):
        assert result.dtype == results[("eager", *key)].dtype == key[1]
        results[("graph", *key)] = result
    return results


def case_allreduce_sums_every_dtype_and_shape() -> None:
    for key, got in everywhere(lambda *at: hvd.allreduce(mine(*at), op=hvd.Sum), DTYPES).items():
        total = wide(*key[1:])
        same(got, total.any(0) if key[2] == tf.bool else total.sum(0), key)


def case_allreduce_finds_min_max_product() -> None:
    some = [tf.float32, tf.int32, tf.uint8, tf.bfloat16]
    for op, reduce in ((hvd.Min, np.min), (hvd.Max, np.max), (hvd.Product, np.prod)):
        for key, got in everywhere(lambda *at, op=op: hvd.allreduce(mine(*at), op=op), some).items():
            same(got, reduce(wide(*key[1:]), axis=0), (op, key))


def case_allreduce_averages_and_truncates_integers() -> None:
    for key, got in everywhere(lambda *at: hvd.allreduce(mine(*at)), [tf.float64, tf.int32]).items():
        mean = wide(*key[1:]).sum(0) / hvd.size()
        assert np.allclose(got.numpy(), np.trunc(mean) if key[2] == tf.int32 else mean), key


def case_allreduce_scales_before_and_after() -> None:
    scales = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    for key, got in everywhere(lambda *at: hvd.allreduce(mine(*at), op=hvd.Sum, **scales), [tf.float32]).items():
        same(got, 1.5 * wide(*key[1:]).sum(0), key)


def case_scalars_and_nothing_are_reduced() -> None:
    same(hvd.allreduce(tf.constant(2.0), op=hvd.Sum), np.array(2.0 * hvd.size()), "scalar")
    assert hvd.allreduce(tf.zeros([0, 3])).shape == (0, 3)
    assert hvd.allgather(tf.zeros([0, 3])).shape == (0, 3)
    assert hvd.grouped_allreduce([]) == []


def case_allgather_joins_different_first_dimensions() -> None:
    def rows(rank: int, shape: tuple[int, ...], dtype: tf.DType) -> np.ndarray:
        return np.concatenate([value(rank, shape, dtype)] * rank) if rank else value(0, shape, dtype)[:0]

    def make(shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
        return hvd.allgather(tf.constant(rows(hvd.rank(), shape, dtype)))

    for key, got in everywhere(make, DTYPES).items():
        same(got, np.concatenate([rows(r, *key[1:]) for r in range(hvd.size())]), key)


def case_broadcast_from_every_root() -> None:
    for root in range(hvd.size()):
        for key, got in everywhere(lambda *at, root=root: hvd.broadcast(mine(*at), root), DTYPES).items():
            same(got, value(root, *key[1:]), (root, key))


def case_alltoall_with_and_without_splits() -> None:
    size, rank = hvd.size(), hvd.rank()

    def part(source: int, target: int, shape: tuple[int, ...], dtype: tf.DType) -> np.ndarray:
        return np.repeat(value(10 * source + target, shape, dtype)[:1], target, axis=0)

    def make(shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
        parts = [part(rank, target, shape, dtype) for target in range(size)]
        rows, received = hvd.alltoall(tf.constant(np.concatenate(parts)), splits=list(range(size)))
        with tf.control_dependencies([tf.debugging.assert_equal(received, [rank] * size)]):
            return tf.identity(rows)

    for key, got in everywhere(make, DTYPES).items():
        same(got, np.concatenate([part(source, rank, *key[1:]) for source in range(size)]), key)
    same(hvd.alltoall(tf.range(size) + 10 * rank), np.arange(size) * 10 + rank, "equal")


def case_reducescatter_gives_blocks() -> None:
    size, rank = hvd.size(), hvd.rank()
    numbers = [dtype for dtype in DTYPES if dtype != tf.bool]
    for key, got in everywhere(lambda *at: hvd.reducescatter(mine(*at), op=hvd.Sum), numbers).items():
        rows = key[1][0]
        ends = np.cumsum([rows // size + (r < rows % size) for r in range(size)])
        same(got, np.split(wide(*key[1:]).sum(0), ends)[rank], key)


def case_groups_become_ready_together() -> None:
    def make() -> list[tf.Tensor]:
        given = [tf.fill([n + 1], float(hvd.rank())) for n in range(5)]
        ints = [tf.fill([2], hvd.rank())]
        reduced = hvd.grouped_allreduce([*given, *ints], op=hvd.Sum)
        return [*reduced, *hvd.grouped_allgather(given), *hvd.grouped_reducescatter(given, op=hvd.Sum)]

    total = sum(range(hvd.size()))
    for results in (make(), tf.function(make)()):
        assert len(results) == 16
        for n, got in enumerate(results[:5]):
            same(got, np.full(n + 1, float(total)), n)
        same(results[5], np.full(2, total), "ints")
        assert [r.shape[0] for r in results[6:11]] == [(n + 1) * hvd.size() for n in range(5)]


def case_names_and_compression_of_single_operations() -> None:
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16, hvd.Compression.none):
        got = hvd.allreduce(tf.fill([4], 0.5), compression=compression, op=hvd.Sum, name="named")
        assert got.dtype == tf.float32
        same(got, np.full(4, 0.5 * hvd.size()), compression)


def case_indexed_slices_are_joined_by_rank() -> None:
    """Alone and grouped with dense tensors, with and without dense_shape, floats and integers; averages divide."""
    rank, size = hvd.rank(), hvd.size()
    for dtype in (tf.float32, tf.float64, tf.bfloat16, tf.int32, tf.int64):
        for shape in (None, tf.constant([9, 3])):

            def slices(factor: int, dtype: tf.DType = dtype, shape: Any = shape) -> tf.IndexedSlices:
                values = tf.cast(tf.fill([2, 3], factor * (rank + 1)), dtype)
                return tf.IndexedSlices(values, tf.constant([0, rank + 1]), shape)

            def all_of_them(slices: Any = slices) -> Any:
                group = [slices(1), tf.fill([4], float(rank)), slices(4)]
                return [
                    hvd.allreduce(slices(4)),
                    *hvd.grouped_allreduce(group, op=hvd.Sum),
                    *hvd.grouped_allreduce(group, op=hvd.Average, name="slices"),
                ]

            for results in (all_of_them(), tf.function(all_of_them)()):
                for i, (factor, divided) in {0: (4, size), 1: (1, 1), 3: (4, 1), 4: (1, size), 6: (4, size)}.items():
                    got = results[i]
                    want = np.repeat([factor * (r + 1) / divided for r in range(size)], 6).reshape(2 * size, 3)
                    assert got.indices.numpy().tolist() == [row for r in range(size) for row in (0, r + 1)]
                    assert np.allclose(got.values.numpy().astype(np.float64), want, rtol=0.01), (dtype, i, got.values)
                    assert (got.dense_shape is None) == (shape is None)
                    assert got.dtype == dtype or (divided > 1 and got.dtype.is_floating)
                same(results[2], np.full(4, float(sum(range(size)))), "dense sum")
                same(results[5], np.full(4, np.float32(sum(range(size)) / size)), "dense average")
    sparse = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))
    refused(lambda: hvd.allreduce(sparse, op=hvd.Max), NotImplementedError, "averaged or summed")


def case_errors_are_of_both_kinds() -> None:
    """Errors of eager code are Sirtaki's and TensorFlow's at once, as Horovod programs expect, and can be pickled."""
    import pickle

    rank = hvd.rank()
    for call in (
        lambda: hvd.allreduce(tf.ones([3 + rank])),
        lambda: hvd.allreduce(tf.ones([3], tf.float32 if rank % 2 else tf.int32)),
        lambda: hvd.grouped_allreduce([tf.ones([3]), tf.ones([3 + rank])]),
        lambda: hvd.allgather(tf.ones([2, 3 + rank])),
        lambda: hvd.broadcast(tf.ones([3]), rank),
        lambda: hvd.alltoall(tf.ones([hvd.size(), 3 + rank])),
        lambda: hvd.reducescatter(tf.ones([3 + rank])),
    ):
        try:
            call()
        except tf.errors.FailedPreconditionError as error:
            assert isinstance(error, hvd.HorovodInternalError), error
            assert type(error).__name__ == "MismatchError", error
            again = pickle.loads(pickle.dumps(error))
            assert isinstance(again, tf.errors.FailedPreconditionError), again
            assert (str(again), again.rank, again.tensor) == (str(error), error.rank, error.tensor)
        else:
            raise AssertionError("not refused")
    # A wrong root is found even where the agreement of every root is cached, and each rank could begin and end alone.
    for _ in range(3):
        for root in range(hvd.size()):
            hvd.broadcast(tf.ones([17, 17]), root)
        refused(lambda: hvd.broadcast(tf.ones([17, 17]), rank), tf.errors.FailedPreconditionError, "root")
    for call in (
        lambda: hvd.alltoall(tf.ones([hvd.size() + 1])),
        lambda: hvd.alltoall(tf.ones([hvd.size() - 1]), splits=tf.ones([hvd.size()], tf.int32)),
        lambda: hvd.reducescatter(tf.constant(1.0)),
    ):
        refused(call, tf.errors.InvalidArgumentError, "")
        refused(call, ValueError, "")


def case_operations_in_loops_and_branches() -> None:
    @tf.function
    def looped(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(4):
            x = hvd.allreduce(x, op=hvd.Sum)
        if tf.reduce_sum(x) > 0:
            x += hvd.allreduce(x)
        return x

    same(looped(tf.ones([3])), np.full(3, 2.0 * hvd.size() ** 4), "loop")
    mapped = tf.function(lambda x: tf.map_fn(lambda row: hvd.allreduce(row, op=hvd.Sum), x))
    same(mapped(tf.reshape(tf.range(8.0), [4, 2])), np.arange(8.0).reshape(4, 2) * hvd.size(), "map_fn")


def case_many_operations_of_a_function_are_in_flight() -> None:
    @tf.function
    def many(x: tf.Tensor) -> tf.Tensor:
        return tf.add_n([hvd.allreduce(x * float(i), op=hvd.Sum) for i in range(100)])

    for _ in range(3):
        same(many(tf.ones([50])), np.full(50, 4950.0 * hvd.size()), "many")


def case_barrier_and_objects() -> None:
    hvd.barrier()
    tf.function(hvd.barrier)()
    rank, size = hvd.rank(), hvd.size()
    assert hvd.broadcast_object({"rank": rank, "data": b"x" * 1000}, root_rank=size - 1)["rank"] == size - 1
    assert hvd.allgather_object(["a"] * rank) == [["a"] * r for r in range(size)]
    assert hvd.broadcast_object_fn(size - 1, name="fn")({"rank": rank}) == {"rank": size - 1}
    assert int(hvd.size_op()) == size
    assert int(hvd.process_set_included_op()) == 1
    alone = hvd.add_process_set([0])
    assert int(hvd.process_set_included_op(alone.process_set_id)) == (rank == 0)
    hvd.remove_process_set(alone)


def case_process_sets() -> None:
    some = hvd.ProcessSet([0, hvd.size() - 1])
    if some.included():
        got = hvd.allreduce(tf.fill([3], float(hvd.rank())), op=hvd.Sum, process_set=some)
        same(got, np.full(3, hvd.size() - 1.0), "set")
        assert hvd.allgather(tf.constant([hvd.rank()]), process_set=some).numpy().tolist() == some.ranks
    else:
        refused(lambda: hvd.allreduce(tf.ones([3]), process_set=some), ValueError, "not in")


def refused(call: Callable[[], Any], kind: type[BaseException], part: str) -> None:
    """Requires that `call` raises `kind` with `part` in its text."""
    try:
        call()
    except kind as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"not refused: {part}")


def case_wrong_arguments_are_value_errors_in_both_modes() -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: hvd.allreduce(tf.ones([2]), op="sum"), "op is"),
        (lambda: hvd.allreduce(tf.ones([2]), average=True, op=hvd.Sum), "both"),
        (lambda: hvd.allreduce(tf.ones([2]), name=""), "name is"),
        (lambda: hvd.allreduce(tf.ones([2]), compression="int8"), "compression"),
        (lambda: hvd.allreduce(tf.ones([2]), process_set=[0]), "process_set"),
        (lambda: hvd.allgather(tf.constant(1.0)), "dimension"),
        (lambda: hvd.alltoall(tf.constant(1.0)), "dimension"),
        (lambda: hvd.reducescatter(tf.constant(1.0)), "dimension"),
        (lambda: hvd.alltoall(tf.ones([4]), splits=[1] * (hvd.size() + 1)), "splits"),
        (lambda: hvd.broadcast(tf.ones([2]), hvd.size()), "root_rank"),
        (lambda: hvd.broadcast_variables([1.0], 0), "variables"),
    ]
    for call, part in wrong:
        refused(call, ValueError, part)
        refused(tf.function(call), ValueError, part)
    refused(lambda: hvd.allreduce(tf.ones([2], tf.complex64)), ValueError, "cannot be sent")
    refused(lambda: hvd.allreduce(tf.constant(["text"])), ValueError, "cannot be sent")
    refused(lambda: hvd.allreduce(tf.ones([2], tf.int32), op=hvd.Adasum), ValueError, "floating-point")
    refused(lambda: hvd.reducescatter(tf.ones([2]), op=hvd.Adasum), NotImplementedError, "Adasum")


def case_a_name_in_flight_twice_is_an_error() -> None:
    big = tf.ones([1 << 20])
    refusals: queue.SimpleQueue[str] = queue.SimpleQueue()

    def submit() -> None:
        try:
            with hvd.horovod_errors():
                hvd.allreduce(big, name="twice")
        except ValueError as error:
            refusals.put(str(error))

    if hvd.rank() > 0:
        # Neither of the two operations of rank 0 can complete before this rank submits its own.
        hvd.barrier()
        submit()
        return
    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert "'twice' is in flight" in refusals.get(timeout=60)
    hvd.barrier()
    for thread in threads:
        thread.join()


def case_ranks_that_disagree_are_told_who() -> None:
    shape = [2 + hvd.rank()]
    refused(lambda: hvd.allreduce(tf.ones(shape), name="bad"), hvd.HorovodInternalError, "tensor 'bad'")
    step = tf.function(lambda x: hvd.allreduce(x, name="worse"))

    def guarded() -> None:
        with hvd.horovod_errors():
            step(tf.ones(shape))

    refused(guarded, hvd.HorovodInternalError, "tensor 'worse'")
    refused(lambda: step(tf.ones(shape)), tf.errors.FailedPreconditionError, "tensor 'worse'")


def case_xla_is_refused_with_what_to_do() -> None:
    step = tf.function(hvd.allreduce, jit_compile=True)
    refused(lambda: step(tf.ones([2])), NotImplementedError, "jit_compile=False")
