# ruff: noqa: PT017  (no pytest on the ranks)
"""A mistake in the program raises within two seconds, on every rank, an error that names tensor, ranks and values."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import sirtaki
import sirtaki.torch as hvd


def fails(
    call: Callable[[], object],
    kind: type[BaseException] | tuple[type[BaseException], ...],
    *words: str,
    within: float = 2.0,
) -> None:
    begin = time.monotonic()
    try:
        call()
    except kind as error:
        seconds = time.monotonic() - begin
        assert seconds < within, f"{seconds:.1f} s: {error}"
        for word in words:
            assert word in str(error), f"'{word}' is not in: {error}"
    else:
        raise AssertionError(f"no {kind}")


def still_works() -> None:
    hvd.barrier()
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2


def case_shapes_differ() -> None:
    rows = 3 + (hvd.rank() == 1)
    fails(lambda: hvd.allreduce(torch.ones(rows, 2), name="odd.shape"), hvd.HorovodInternalError, "odd.shape", "3", "4")
    still_works()


def case_error_names_tensor_and_kind() -> None:
    try:
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="blamed")
    except sirtaki.MismatchError as error:
        assert error.tensor == "blamed"
    else:
        raise AssertionError("no MismatchError")
    still_works()


def case_dtypes_differ() -> None:
    dtype = torch.float64 if hvd.rank() == 0 else torch.float32
    fails(
        lambda: hvd.allreduce(torch.ones(3, dtype=dtype), name="odd.dtype"),
        hvd.HorovodInternalError,
        *("odd.dtype", "float32", "float64"),
    )
    still_works()


def case_operations_differ() -> None:
    def call() -> None:
        if hvd.rank() == 0:
            hvd.allgather(torch.ones(3), name="odd.operation")
        else:
            hvd.allreduce(torch.ones(3), name="odd.operation")

    fails(call, hvd.HorovodInternalError, "odd.operation", "allgather", "allreduce")
    still_works()


def case_reduce_ops_differ() -> None:
    op = hvd.Sum if hvd.rank() == 0 else hvd.Max
    fails(lambda: hvd.allreduce(torch.ones(3), name="odd.op", op=op), hvd.HorovodInternalError, "odd.op", "sum", "max")
    op = hvd.Sum if hvd.rank() == 0 else hvd.Average
    fails(lambda: hvd.reducescatter(torch.ones(3), name="odd.rs", op=op), hvd.HorovodInternalError, "odd.rs")
    still_works()


def case_roots_differ() -> None:
    root = 0 if hvd.rank() == 0 else 1
    fails(lambda: hvd.broadcast(torch.ones(3), root, "odd.root"), hvd.HorovodInternalError, "odd.root")
    still_works()


def case_allgather_other_dimensions_differ() -> None:
    columns = 2 + (hvd.rank() == 0)
    fails(lambda: hvd.allgather(torch.ones(3, columns), "odd.columns"), hvd.HorovodInternalError, "odd.columns")
    still_works()


def case_known_name_changes_shape_on_one_rank() -> None:
    for _ in range(3):
        hvd.allreduce(torch.ones(4), name="settled")
    rows = 4 if hvd.rank() == 0 else 5
    fails(lambda: hvd.allreduce(torch.ones(rows), name="settled"), hvd.HorovodInternalError, "settled")
    still_works()


def case_same_name_twice_in_flight() -> None:
    handle = None
    hvd.barrier()
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
        kinds = (ValueError, hvd.HorovodInternalError)
        fails(lambda: hvd.allreduce_async(torch.ones(3), name="twice"), kinds, "'twice'", "on rank 0")
        hvd.allreduce(torch.ones(1), name="twice.go")
    else:
        hvd.allreduce(torch.ones(1), name="twice.go")
        handle = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [hvd.size()] * 3


def case_ranks_wait_for_each_other() -> None:
    name = "only.rank0" if hvd.rank() == 0 else "only.others"
    fails(lambda: hvd.allreduce(torch.ones(3), name=name), hvd.HorovodInternalError, "only.", within=4.0)
    still_works()


def case_a_late_rank_is_waited_for() -> None:
    if hvd.rank() == 0:
        time.sleep(2.5)  # lint: allow(sleep) the lateness under test
    assert hvd.allreduce(torch.ones(1), name="late", op=hvd.Sum).item() == hvd.size()


def case_wait_with_timeout_leaves_the_operation() -> None:
    hvd.barrier()
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="slow", op=hvd.Sum)
        fails(lambda: handle.wait(0.2), TimeoutError)
        hvd.allreduce(torch.ones(1), name="slow.go")
    else:
        hvd.allreduce(torch.ones(1), name="slow.go")
        handle = hvd.allreduce_async(torch.ones(1), name="slow", op=hvd.Sum)
    assert handle.wait().item() == hvd.size()


def case_arguments_are_checked_here() -> None:
    size = hvd.size()
    here = f"on rank {hvd.rank()}"
    fails(lambda: hvd.allreduce(torch.ones(1).int(), op=hvd.Adasum, name="i"), ValueError, "floating-point", here)
    fails(lambda: hvd.reducescatter(torch.ones(2), op=hvd.Adasum), NotImplementedError, "Adasum", here)
    fails(lambda: hvd.broadcast(torch.ones(1), size, "bad.root"), ValueError, "root_rank", "'bad.root'", here)
    fails(lambda: hvd.allgather(torch.tensor(1.0), "flat"), ValueError, "dimension", "'flat'", here)
    expanded = torch.ones(1).expand(3)
    fails(lambda: hvd.allreduce_(expanded, name="wide"), ValueError, "share memory", "'wide'", here)
    fails(lambda: hvd.broadcast_(expanded, 0, "wide"), ValueError, "share memory", "'wide'", here)
    fails(lambda: hvd.allreduce(torch.ones(2, dtype=torch.uint32)), ValueError, "uint32")
    fails(lambda: hvd.allreduce(torch.ones(2).to_sparse()), ValueError, "sparse")
    fails(lambda: hvd.alltoall(torch.ones(size), splits=[1] * (size + 1)), ValueError, "splits")
    fails(lambda: hvd.alltoall(torch.ones(size), splits=[2] * size), ValueError, "splits")
    fails(lambda: hvd.alltoall(torch.ones(size + 1), name="odd.rows"), ValueError, "'odd.rows'", here)
    for call in (hvd.synchronize, hvd.poll, hvd.get_future):
        fails(lambda call=call: call(7), ValueError, "handle", "7", "int")
    fails(lambda: hvd.allreduce(torch.ones(1), process_set=object()), ValueError, "must be a ProcessSet")
    still_works()


def case_wrong_types_are_refused_with_what_is_right() -> None:
    one, some = torch.ones(1), torch.ones(hvd.size())
    for call, *words in (
        (lambda: hvd.allreduce(one, name=3), "name is 3", "text"),
        (lambda: hvd.allreduce(one, name="a\0b"), "a\\x00b", "text"),
        (lambda: hvd.allreduce(one, op="sum"), "'sum'", "Average, Sum"),
        (lambda: hvd.reducescatter(some, op=None), "None", "Average, Sum"),
        (lambda: hvd.allreduce(one, prescale_factor="2"), "'2'", "numbers"),
        (lambda: hvd.allreduce(one, compression="fp16"), "'fp16'", "Compression.none"),
        (lambda: hvd.grouped_allreduce_([one, one]), "twice"),
        (lambda: hvd.broadcast(one, "0"), "root_rank is '0'", "ranks are 0"),
        (lambda: hvd.alltoall(some, splits=3), "splits is 3", "integers"),
        (lambda: hvd.alltoall(some, splits=[]), "splits is []", "integers"),
        (lambda: hvd.sparse_allreduce_async(one), "sparse COO"),
        (lambda: hvd.broadcast_parameters([("a", one, 3)]), "pairs"),
        (lambda: hvd.broadcast_optimizer_state(None), "Optimizer", "NoneType"),
        (lambda: hvd.DistributedOptimizer(torch.nn.Linear(1, 1)), "Optimizer", "Linear"),
        (lambda: hvd.init(options="x"), "mapping"),
    ):
        fails(call, ValueError, *words)
    assert hvd.broadcast(one, torch.tensor(0)).item() == 1.0
    plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    for argument, wrong in (
        ("backward_passes_per_step", 1.5),
        ("gradient_predivide_factor", float("inf")),
        ("gradient_predivide_factor", "x"),
        ("op", "sum"),
        ("named_parameters", 3),
    ):
        fails(lambda a=argument, w=wrong: hvd.DistributedOptimizer(plain, **{a: w}), ValueError, argument)
    still_works()


def case_failed_future_holds_the_error() -> None:
    future = hvd.get_future(hvd.allreduce_async(torch.ones(2 + hvd.rank()), name="future.fails"))
    fails(future.wait, Exception, "future.fails")
    still_works()
