"""Starting all ranks from the same state, and exchanging Python objects."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sirtaki import errors
from sirtaki.basics import rank, size
from sirtaki.errors import require
from sirtaki.ops import URGENT, Ops, Submission
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.torch._adapter import torch_ops
from sirtaki.torch._calls import complete_all
from sirtaki.torch._debts import KEY


def _pickle(value: object) -> Tensor:
    buffer = io.BytesIO()
    try:
        import cloudpickle

        cloudpickle.dump(value, buffer)
    except ImportError:
        pickle.dump(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _urgently(ops: Ops, submission: Submission) -> Tensor:
    # Somebody waits for an object, however large it is.
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
        params: model.state_dict(), model.named_parameters() or a list of tensors; the same names and shapes on all
            ranks.
        root_rank: the rank whose values all get.
        process_set: the ranks that take part; all by default.

    Raises:
        ValueError: `params` is none of these.
        HorovodInternalError: ranks disagree about a tensor; the text names it.
    """
    ops = torch_ops.within(process_set)
    complete_all()
    if isinstance(params, Mapping):
        pairs: list[Any] = list(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (Tensor, str)):
        pairs = [p if isinstance(p, tuple) else (f"parameter.{i}", p) for i, p in enumerate(params)]
        well_formed = all(len(pair) == 2 and isinstance(pair[0], str) for pair in pairs)
        require(well_formed, "params must be tensors or pairs (name, tensor), as model.named_parameters() gives them")
    else:
        raise errors.InvalidArgumentError(f"cannot broadcast parameters of type {type(params).__name__}")
    work = []
    for name, tensor in pairs:
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise errors.InvalidArgumentError(
                f"{name} is no tensor but {type(tensor).__name__}; send it with broadcast_object()"
            )
        work.append(ops.broadcast(tensor, root_rank, f"broadcast.{name}", in_place=True))
    for handle in ops.start(work):
        handle.wait()


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Any picklable object of `root_rank`, on all ranks.

    Args:
        obj: looked at on the root alone.
        root_rank: the rank whose object all get.
        name: the same on all ranks.
        process_set: the ranks that take part; all by default.
    """
    ops = torch_ops.within(process_set)
    names = (None, None) if name is None else (f"{name}.bytes", f"{name}.object")
    data = _pickle(obj) if rank() == root_rank else torch.empty(0, dtype=torch.uint8)
    length = _urgently(ops, ops.broadcast(torch.tensor([data.numel()]), root_rank, names[0], in_place=True))
    if rank() != root_rank:
        data = torch.empty(int(length), dtype=torch.uint8)
    data = _urgently(ops, ops.broadcast(data, root_rank, names[1], in_place=True))
    return obj if rank() == root_rank else _unpickle(data)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Any picklable object of every rank, as a list by rank, on all ranks."""
    ops = torch_ops.within(process_set)
    names = (None, None) if name is None else (f"{name}.bytes", f"{name}.object")
    data = _pickle(obj)
    lengths = _urgently(ops, ops.allgather(torch.tensor([data.numel()]), names[0])).tolist()
    return [_unpickle(part) for part in _urgently(ops, ops.allgather(data, names[1])).split(lengths)]


class _Slot:
    """Stands for a tensor in a state_dict that travels as an object."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = tensor.device.type  # every rank has a GPU of its own


def _take_tensors(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value)
        return _Slot(value)
    if isinstance(value, dict):
        return {key: _take_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_take_tensors(item, tensors) for item in value)
    return value


def _put_tensors(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, _Slot):
        tensor = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        tensors.append(tensor)
        return tensor
    if isinstance(value, dict):
        return {key: _put_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_put_tensors(item, tensors) for item in value)
    return value


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: torch.nn.Module | None = None
) -> None:
    """Overwrites the optimizer's state and options (learning rate, momentum, ...) with those of `root_rank`.

    Ranks whose optimizer has no state yet get it. What each rank owes of compressed gradients stays its own. `model` is
    accepted as in Horovod and not needed.

    Raises:
        ValueError: the optimizer is LBFGS, whose state cannot be sent, or the parameter groups differ in length.
    """
    del model
    known = isinstance(optimizer, torch.optim.Optimizer)
    require(known, f"expected a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise errors.InvalidArgumentError("the state of LBFGS cannot be broadcast")
    if size() == 1:
        return
    tensors: list[Tensor] = []
    kept = optimizer.state_dict()
    owed = {KEY: kept.pop(KEY)} if KEY in kept else {}
    if rank() == root_rank:
        broadcast_object(_take_tensors(kept, tensors), root_rank, "optimizer.state")
        state = None
    else:
        state = _put_tensors(broadcast_object(None, root_rank, "optimizer.state"), tensors)
    work = [
        torch_ops.broadcast(tensor, root_rank, f"optimizer.state.{i}", in_place=True)
        for i, tensor in enumerate(tensors)
    ]
    for handle in torch_ops.start(work):
        handle.wait()
    if state is not None:
        optimizer.load_state_dict({**state, **owed})
