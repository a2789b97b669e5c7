"""The tensors of an elastic state that Sirtaki keeps equal on all ranks, and their digests.

These are the parameters and the state of each DistributedOptimizer whose gradients all ranks average in every step, and
all other parameters of models that it trains. Buffers differ by right, and so do models of local updates, of process
sets and of plain optimizers. Sparse and sharded tensors are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sirtaki.elastic._divergence import Fingerprint
from sirtaki.process_sets import global_process_set


@dataclass(frozen=True)
class Compared:
    """Implements sirtaki.elastic._comparison.Compared."""

    #: The same on all ranks.
    name: str
    #: Name of the optimizer in the state if it is of the state of one, else "".
    optimizer: str
    find: Callable[[], Any]
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    gpu: torch.device | None = None

    def tensor(self) -> Tensor | None:
        """Returns the tensor as it is now; None if there is none of this kind any more."""
        found = self.find()
        fits = _is_compared(found) and (tuple(found.shape), found.dtype) == (self.shape, self.dtype)
        return found.detach() if fits else None

    def fingerprint(self) -> Fingerprint:
        """Returns the description that ranks compare."""
        tensor = self.tensor()
        values: Any = b"" if tensor is None else row_major_bytes(tensor).numpy()
        return Fingerprint(self.optimizer, self.kind, hashlib.sha256(values).digest())

    @property
    def kind(self) -> str:
        """Implements sirtaki.elastic._comparison.Compared."""
        return f"{self.dtype}{self.shape}"

    def piece(self, first: int, last: int) -> Any:
        """Returns some bytes, in the order of the memory of the tensor."""
        tensor = self.tensor()
        return None if tensor is None else _memory_bytes(tensor)[first:last].cpu().numpy()

    def read(self) -> Tensor:
        """Returns all bytes in row-major order."""
        tensor = self.tensor()
        assert tensor is not None, self.name
        return row_major_bytes(tensor)

    def write(self, values: Tensor) -> None:
        """Sets the tensor to a result of read()."""
        tensor = self.tensor()
        assert tensor is not None, self.name
        write_bytes(tensor, values)


def compared_of(values: Mapping[str, Any]) -> list[Compared]:
    """Returns the tensors of a state that are compared, in an order that is the same on all ranks.

    Args:
        values: models, optimizers and other objects of the state, by name.
    """
    optimizers = {name: value for name, value in values.items() if is_compared_optimizer(value)}
    trained = {id(param) for optimizer in optimizers.values() for param in _params_of(optimizer)}
    plain = [v for v in values.values() if isinstance(v, torch.optim.Optimizer) and not is_compared_optimizer(v)]
    of_others = {id(param) for optimizer in plain for param in _params_of(optimizer)}
    names: dict[int, str] = {}
    found: list[Compared | None] = []
    for key, model in values.items():
        params = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
        if not any(id(param) in trained for param in params.values()):
            continue
        for name, own in params.items():
            if id(own) not in names and id(own) not in of_others:
                names[id(own)] = f"{key}.{name}"
                found.append(_described(names[id(own)], "", partial(_itself, own)))
    for key, optimizer in optimizers.items():
        for number, param in enumerate(_params_of(optimizer)):
            if id(param) not in names:
                name = optimizer._parameter_names.get(param, str(number))
                names[id(param)] = f"{key}: parameter {name}"
                found.append(_described(names[id(param)], "", partial(_itself, param)))
            if not hasattr(optimizer, "_sirtaki_adasum"):  # there each rank makes steps of its own
                found += _of_state(key, optimizer, param, names[id(param)])
    return [one for one in found if one is not None]


def is_compared_optimizer(value: Any) -> bool:
    """Returns True for a DistributedOptimizer that averages on all ranks in every step."""
    if not isinstance(value, torch.optim.Optimizer):
        return False
    adasum, reducer = getattr(value, "_sirtaki_adasum", None), getattr(value, "_sirtaki", None)
    if adasum is not None:
        return bool(adasum.process_set == global_process_set)
    is_local = getattr(value, "_sirtaki_local", None) is not None
    return reducer is not None and reducer.options.process_set == global_process_set and not is_local


def row_major_bytes(tensor: Tensor) -> Tensor:
    """Returns the values of a tensor as bytes in host memory, which may be its own."""
    return _as_bytes(tensor.contiguous()).cpu()


def write_bytes(tensor: Tensor, values: Tensor) -> None:
    """Sets a tensor to a result of row_major_bytes()."""
    with torch.no_grad():
        tensor.copy_(values.view(tensor.dtype).view(tensor.shape))


def _of_state(key: str, optimizer: Any, param: Tensor, name: str) -> Iterator[Compared | None]:
    state = optimizer.state.get(param)
    for path in _paths(state, ()):
        part = " ".join(map(str, path))
        yield _described(f"{key}: {part} of {name}", key, partial(_in_state, optimizer, param, path))


def _paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yields the places of tensors in a value."""
    if isinstance(value, Tensor):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for key, item in enumerate(value):
            yield from _paths(item, (*path, key))


def _in_state(optimizer: Any, param: Tensor, path: tuple[Any, ...]) -> Any:
    found = optimizer.state.get(param)  # [] would make an entry
    try:
        for key in path:
            found = found[key]
    except (KeyError, IndexError, TypeError):
        return None
    return found


def _itself(param: Tensor) -> Tensor:
    return param


def _described(name: str, optimizer: str, find: Callable[[], Any]) -> Compared | None:
    tensor = find()
    if not _is_compared(tensor):
        return None
    size = tensor.numel() * tensor.element_size()
    gpu = tensor.device if tensor.is_cuda else None
    return Compared(name, optimizer, find, tuple(tensor.shape), tensor.dtype, size, gpu)


def is_plain(value: Any) -> bool:
    """Returns True for a dense tensor in memory that torch can copy by bytes. DTensors are of another class."""
    return (
        type(value) in (Tensor, nn.Parameter)
        and value.layout == torch.strided
        and not value.is_quantized
        and (value.is_cpu or value.is_cuda)
    )


def _is_compared(value: Any) -> bool:
    return is_plain(value) and value.numel() > 0


def _params_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _memory_bytes(tensor: Tensor) -> Tensor:
    """Returns the bytes of a tensor, in the order of its memory where it has no gaps, which costs no copy."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return _as_bytes(tensor.permute(order))


def _as_bytes(tensor: Tensor) -> Tensor:
    plain = tensor.resolve_conj().resolve_neg()
    return (torch.view_as_real(plain) if plain.is_complex() else plain).reshape(-1).contiguous().view(torch.uint8)
