"""Broadcasts of parameters and optimizer state, and exchange of Python objects."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sirtaki import errors
from sirtaki._local_sgd import models_broadcast
from sirtaki._pickling import pickled
from sirtaki.basics import rank, size
from sirtaki.elastic._transfer import Transfer
from sirtaki.errors import require
from sirtaki.ops import URGENT, Ops, Submission
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.torch._adapter import torch_ops
from sirtaki.torch._module_hooks import finish_all_updates
from sirtaki.torch._optimizer.named_operations import repeated
from sirtaki.torch._optimizer_state import (
    State,
    allocate_tensors,
    devices_of,
    extract_tensors,
    install_state,
    plain_state_dict,
)


def _pickle(value: object) -> Tensor:
    return torch.frombuffer(pickled(value), dtype=torch.uint8)


def _run_urgently(ops: Ops, submission: Submission) -> Tensor:
    # Urgent whatever its size, because the caller waits for the object.
    result: Tensor = ops.start_one(submission, URGENT).wait()
    return result


def _unpickle(data: Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Tensor]] | Iterable[Tensor],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites parameters and buffers with those of `root_rank`, in place.

    Args:
        params: model.state_dict(), model.named_parameters() or a list of tensors; the same names, shapes and dtypes on
            all ranks.
        root_rank: the rank whose values all ranks get.
        process_set: the ranks that take part; all by default.

    Raises:
        ValueError: `params` is none of these.
        HorovodInternalError: ranks disagree about a tensor; the text names it.
    """
    ops = torch_ops.within(process_set)
    finish_all_updates()
    if isinstance(params, Mapping):
        pairs: list[Any] = list(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (Tensor, str)):
        pairs = [p if isinstance(p, tuple) else (f"parameter.{i}", p) for i, p in enumerate(params)]
        well_formed = all(len(pair) == 2 and isinstance(pair[0], str) for pair in pairs)
        require(well_formed, "params must be tensors or pairs (name, tensor), as model.named_parameters() gives them")
    else:
        raise errors.InvalidArgumentError(f"cannot broadcast parameters of type {type(params).__name__}")
    pairs = [(name, tensor) for name, tensor in pairs if tensor is not None]
    for name, tensor in pairs:
        if not isinstance(tensor, Tensor):
            raise errors.InvalidArgumentError(
                f"{name} is no tensor but {type(tensor).__name__}; send it with broadcast_object()"
            )

    def attempt() -> None:
        work = [ops.broadcast(tensor, root_rank, f"broadcast.{name}", in_place=True) for name, tensor in pairs]
        for handle in ops.start(work):
            handle.wait()

    repeated(ops, attempt, [tensor for _, tensor in pairs], root_rank)
    models_broadcast()


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
    ops = torch_ops.within(process_set)
    names = (None, None) if name is None else (f"{name}.bytes", f"{name}.object")

    def attempt() -> tuple[bool, Tensor]:
        root = rank() == root_rank
        data = _pickle(obj) if root else torch.empty(0, dtype=torch.uint8, device="cpu")
        size_of_data = torch.tensor([data.numel()], dtype=torch.int64, device="cpu")
        length = _run_urgently(ops, ops.broadcast(size_of_data, root_rank, names[0], in_place=True))
        if not root:
            data = torch.empty(int(length), dtype=torch.uint8, device="cpu")
        return root, _run_urgently(ops, ops.broadcast(data, root_rank, names[1], in_place=True))

    root, data = repeated(ops, attempt, root_rank=root_rank)
    return obj if root else _unpickle(data)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the picklable objects of all ranks on every rank, in rank order.

    Args:
        obj: the object of this rank; types and sizes may differ between ranks.
        name: the same on all ranks; None: the order of calls decides.
        process_set: the ranks that take part; all by default.

    Raises:
        HorovodInternalError: ranks disagree, or one is lost.
    """
    ops = torch_ops.within(process_set)
    names = (None, None) if name is None else (f"{name}.bytes", f"{name}.object")
    data = _pickle(obj)

    def attempt() -> tuple[Tensor, ...]:
        size_of_data = torch.tensor([data.numel()], dtype=torch.int64, device="cpu")
        lengths = _run_urgently(ops, ops.allgather(size_of_data, names[0])).tolist()
        return _run_urgently(ops, ops.allgather(data, names[1])).split(lengths)

    return [_unpickle(part) for part in repeated(ops, attempt)]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: torch.nn.Module | None = None
) -> None:
    """Overwrites state and options of the optimizer (learning rate, momentum, ...) with those of `root_rank`.

    Every rank has the state of the root afterwards, with the same types and bit for bit, even if it had none. Any
    optimizer of torch works, including LBFGS and SparseAdam. Residuals of compressed gradients and the state of local
    updates stay those of each rank.

    Args:
        optimizer: the same optimizer on all ranks, distributed or not.
        root_rank: the rank whose state all ranks get.
        model: accepted as in Horovod; not used.

    Raises:
        ValueError: `optimizer` is no optimizer, or the parameter groups differ in length.
        HorovodInternalError: ranks disagree, or one is lost.
    """
    del model
    known = isinstance(optimizer, torch.optim.Optimizer)
    require(known, f"expected a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if size() == 1:
        return
    finish_all_updates()
    params = [param for group in optimizer.param_groups for param in group["params"]]
    made = repeated(torch_ops, lambda: _state_of(optimizer, root_rank, "optimizer.state"), params, root_rank)
    if rank() != root_rank:
        install_state(optimizer, made)


def share_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    name: str,
    *,
    takes: bool = True,
    process_set: ProcessSet = global_process_set,
    transfer: Transfer | None = None,
) -> None:
    """Sends the state of the root's optimizer, without additions of Sirtaki; ranks with `takes` install it.

    With `transfer`, a tensor goes only to ranks that do not have the same bytes in its place.
    """
    made = _state_of(optimizer, root_rank, name, process_set, transfer)
    if takes and rank() != root_rank:
        install_state(optimizer, made, has_own=transfer is not None)


def _state_of(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    name: str,
    process_set: ProcessSet = global_process_set,
    transfer: Transfer | None = None,
) -> State:
    """Returns the state of the root's optimizer. Collective."""
    root, ops, devices = rank() == root_rank, torch_ops.within(process_set), devices_of(optimizer)
    made, own = extract_tensors(plain_state_dict(optimizer), devices) if root or transfer else (None, [])
    made, count = broadcast_object((made, len(own)), root_rank, name, process_set)
    places: list[Tensor | None] = [*own[:count], *[None] * (count - len(own))]
    wanted = [[rank()]] * count if transfer is None else transfer.lacking(places, root_rank)
    tensors: list[Any] = places
    if not root:
        known = [None if rank() in ranks else one for ranks, one in zip(wanted, places, strict=True)]
        made, tensors = allocate_tensors(made, devices, known)
    sent = [True] * count if transfer is None else transfer.deliver(tensors, wanted)
    work = [
        ops.broadcast(tensor.contiguous() if root else tensor, root_rank, f"{name}.{i}", in_place=True)
        for i, tensor in enumerate(tensors)
        if sent[i]
    ]
    for handle in ops.start(work):
        handle.wait()
    return made
