"""Exchange of Python objects, for frameworks that come with numpy."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from sirtaki import basics
from sirtaki._numpy import Array, numpy_ops
from sirtaki._pickling import pickled
from sirtaki.ops import URGENT, Ops, Submission, check_root
from sirtaki.process_sets import ProcessSet, global_process_set


def _run_urgently(ops: Ops, submission: Submission) -> Array:
    # Urgent whatever its size, because the caller waits for the object.
    result: Array = ops.start_one(submission, URGENT).wait()
    return result


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns a picklable object of `root_rank` on all ranks.

    Args:
        obj: the object; read on the root alone.
        root_rank: the rank whose object all ranks get.
        name: the same on all ranks; None: the order of calls decides.
        process_set: the ranks that take part; all by default.

    Raises:
        ValueError: `root_rank` is no rank.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    ops = numpy_ops.within(process_set)
    check_root(root_rank, "broadcast_object", name)
    names = (None, None) if name is None else (f"{name}.bytes", f"{name}.object")
    root = basics.rank() == root_rank
    data = np.frombuffer(pickled(obj), np.uint8) if root else np.empty(0, np.uint8)
    length = _run_urgently(ops, ops.broadcast(np.array([data.size], np.int64), root_rank, names[0], in_place=True))
    if not root:
        data = np.empty(int(length[0]), np.uint8)
    data = _run_urgently(ops, ops.broadcast(data, root_rank, names[1], in_place=True))
    return obj if root else pickle.loads(data.tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the picklable objects of all ranks on every rank, in rank order.

    Args:
        obj: the object of this rank; types and sizes may differ between ranks.
        name: the same on all ranks; None: the order of calls decides.
        process_set: the ranks that take part; all by default.

    Raises:
        HorovodInternalError: ranks disagree, or one is lost.
    """
    ops = numpy_ops.within(process_set)
    names = (None, None) if name is None else (f"{name}.bytes", f"{name}.object")
    data = np.frombuffer(pickled(obj), np.uint8)
    lengths = _run_urgently(ops, ops.allgather(np.array([data.size], np.int64), names[0])).tolist()
    joined = _run_urgently(ops, ops.allgather(data, names[1]))
    ends = np.cumsum(lengths)
    return [pickle.loads(joined[end - n : end].tobytes()) for n, end in zip(lengths, ends, strict=True)]
