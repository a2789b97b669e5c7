"""An optimizer's state as ranks send it: what it is made of, and how it is put in place as it was on the rank it is of.

torch's load_state_dict() casts what it is given to the types of the parameters, as a checkpoint may be of another
model. Here every rank has the same model, and the state of one rank must be that of all, bit for bit.
"""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from sirtaki import errors
from sirtaki.torch._optimizer_class import user_methods

State = dict[str, Any]


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` of everything in it that is no container; containers keep their types."""
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update((key, map_leaves(item, change)) for key, item in value.items())
        return made
    if isinstance(value, (list, deque)):
        made = copy.copy(value)
        for i, item in enumerate(value):
            made[i] = map_leaves(item, change)
        return made
    if isinstance(value, tuple):
        items = [map_leaves(item, change) for item in value]
        return type(value)._make(items) if hasattr(type(value), "_make") else type(value)(items)
    return change(value)


class _TensorSpec:
    """Stands for a tensor in a state that travels as an object."""

    def __init__(self, tensor: Tensor, device: torch.device | None) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.strides = torch.empty_like(tensor, device="meta").stride()
        #: The type of the device; None where it is on that of its parameter, which every rank has of its own.
        self.device = None if tensor.device == device else tensor.device.type

    def empty(self, device: torch.device | None) -> Tensor:
        """Memory for it on this rank."""
        device = device if self.device is None else torch.device(self.device)
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)


def extract_tensors(state: State, devices: list[torch.device]) -> tuple[State, list[Tensor]]:
    """The state as an object without tensors, and the tensors; `devices`: devices of the parameters by their number."""
    tensors: list[Tensor] = []

    def take(value: Any, device: torch.device | None) -> Any:
        plain = type(value) in (Tensor, Parameter) and value.layout == torch.strided and not value.is_quantized
        if not plain:
            return value
        tensors.append(value.detach())
        return _TensorSpec(value, device)

    return _map_state(state, devices, take), tensors


def allocate_tensors(state: State, devices: list[torch.device]) -> tuple[State, list[Tensor]]:
    """The inverse of extract_tensors(): the state, and its tensors, whose memory is still to be written."""
    tensors: list[Tensor] = []

    def put(value: Any, device: torch.device | None) -> Any:
        if not isinstance(value, _TensorSpec):
            return value
        tensors.append(value.empty(device))
        return tensors[-1]

    return _map_state(state, devices, put), tensors


def _map_state(state: State, devices: list[torch.device], change: Callable[[Any, torch.device | None], Any]) -> State:
    def device_of(key: Any) -> torch.device | None:
        return devices[key] if isinstance(key, int) and key < len(devices) else None

    made = {key: map_leaves(value, lambda v: change(v, None)) for key, value in state.items() if key != "state"}
    for_params = state.get("state", {})
    if isinstance(for_params, dict):
        for_params = {k: map_leaves(v, lambda v, k=k: change(v, device_of(k))) for k, v in for_params.items()}
    return {**made, "state": for_params}


def devices_of(optimizer: Optimizer) -> list[torch.device]:
    """Devices of the parameters, in the order in which state_dict() numbers them."""
    return [p.device for group in optimizer.param_groups for p in group["params"]]


def plain_state_dict(optimizer: Optimizer) -> State:
    """state_dict() of the user's own optimizer."""
    return cast(State, user_methods(optimizer).state_dict())


def install_state(optimizer: Optimizer, state: State) -> None:
    """Makes `state` the optimizer's, as it is. Of optimizers that load in a way of their own: as they do.

    Raises:
        ValueError: the groups of parameters are others.
    """
    load = user_methods(optimizer).load_state_dict
    hooks = optimizer._optimizer_load_state_dict_pre_hooks or optimizer._optimizer_load_state_dict_post_hooks
    if getattr(load, "__func__", None) is not Optimizer.load_state_dict or hooks:
        load(state)
        return
    groups, sent = optimizer.param_groups, state["param_groups"]
    if [len(group["params"]) for group in groups] != [len(group["params"]) for group in sent]:
        raise errors.InvalidArgumentError(
            f"the optimizer has groups of {[len(g['params']) for g in groups]} parameters here and of "
            f"{[len(g['params']) for g in sent]} on the rank whose state is sent; make the same optimizer on all ranks"
        )
    numbers, params = (chain.from_iterable(g["params"] for g in side) for side in (sent, groups))
    by_number = dict(zip(numbers, params, strict=True))
    placed: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
    placed.update((by_number.get(number, number), value) for number, value in state["state"].items())
    own = [{key: group[key] for key in ("params", "param_names") if key in group} for group in groups]
    made = [{**group, **kept} for group, kept in zip(sent, own, strict=True)]
    optimizer.__setstate__({"state": placed, "param_groups": made})
