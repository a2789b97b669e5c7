"""Sends the state of an optimizer from one rank to the others, and installs it unchanged.

torch's load_state_dict() casts a state to the dtypes of the parameters, because a checkpoint may come from another
model. Here every rank has the same model, and the state of one rank must become that of all, bit for bit.
"""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from sirtaki import errors
from sirtaki.torch._optimizer.shards import like_whole, local_of
from sirtaki.torch._optimizer_class import user_methods

State = dict[str, Any]


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns `value` with `change` applied to everything inside that is no container; containers keep their types."""
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update((key, map_leaves(item, change)) for key, item in value.items())
        return made
    if isinstance(value, (list, deque)):
        listed = copy.copy(value)
        for i, item in enumerate(value):
            listed[i] = map_leaves(item, change)
        return listed
    if isinstance(value, tuple):
        items = [map_leaves(item, change) for item in value]
        kind: Any = type(value)
        return kind._make(items) if hasattr(kind, "_make") else kind(items)
    return change(value)


class _TensorSpec:
    """Stands for a tensor in a state that is sent as an object."""

    def __init__(self, tensor: Tensor, device: torch.device | None) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.strides = torch.empty_like(tensor, device="meta").stride()
        #: Device type; None on the device of its parameter, whose index may differ between ranks.
        self.device = None if tensor.device == device else tensor.device.type

    def empty(self, device: torch.device | None) -> Tensor:
        """Returns uninitialized memory for the tensor on this rank."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.on(device))

    def on(self, device: torch.device | None) -> torch.device | None:
        """Returns the device for the tensor on this rank."""
        return device if self.device is None else torch.device(self.device)


def extract_tensors(state: State, devices: list[torch.device]) -> tuple[State, list[Tensor]]:
    """Splits a state into an object without tensors and a list of its tensors.

    Args:
        state: a state_dict() of an optimizer.
        devices: devices of the parameters, by their number in the state.
    """
    tensors: list[Tensor] = []

    def take(value: Any, device: torch.device | None) -> Any:
        value = local_of(value)
        plain = type(value) in (Tensor, Parameter) and value.layout == torch.strided and not value.is_quantized
        if not plain:
            return value
        tensors.append(value.detach())
        return _TensorSpec(value, device)

    return _map_state(state, devices, take), tensors


def allocate_tensors(
    state: State, devices: list[torch.device], known: Sequence[Tensor | None]
) -> tuple[State, list[Tensor]]:
    """Inverts extract_tensors(): returns the state and its tensors, whose memory is still to be filled.

    Args:
        state: a state without tensors.
        devices: devices of the parameters, by their number in the state.
        known: tensors of this rank that have the values already, and None for the others; all in order.
    """
    tensors: list[Tensor] = []

    def put(value: Any, device: torch.device | None) -> Any:
        if not isinstance(value, _TensorSpec):
            return value
        own = known[len(tensors)]
        tensors.append(value.empty(device) if own is None else own.to(device=value.on(device)))
        return tensors[-1]

    return _map_state(state, devices, put), tensors


def _map_state(state: State, devices: list[torch.device], change: Callable[[Any, torch.device | None], Any]) -> State:
    def device_of(key: Any) -> torch.device | None:
        return devices[key] if isinstance(key, int) and key < len(devices) else None

    def placed(key: Any, value: Any) -> Any:
        device = device_of(key)
        return map_leaves(value, lambda leaf: change(leaf, device))

    made = {key: map_leaves(value, lambda v: change(v, None)) for key, value in state.items() if key != "state"}
    for_params = state.get("state", {})
    if isinstance(for_params, dict):
        for_params = {key: placed(key, value) for key, value in for_params.items()}
    return {**made, "state": for_params}


def devices_of(optimizer: Optimizer) -> list[torch.device]:
    """Returns the devices of the parameters, in the order in which state_dict() numbers them."""
    return [p.device for group in optimizer.param_groups for p in group["params"]]


def plain_state_dict(optimizer: Optimizer) -> State:
    """Returns state_dict() of the user's own optimizer."""
    return cast(State, user_methods(optimizer).state_dict())


def install_state(optimizer: Optimizer, state: State, has_own: bool = False) -> None:
    """Replaces the state of the optimizer by `state` without casts; an optimizer with its own loading uses that.

    Args:
        optimizer: the optimizer.
        state: its next state.
        has_own: some tensors of `state` are those of the optimizer, whose own loading may clear them first.

    Raises:
        InvalidArgumentError: the parameter groups differ in length.
    """
    load = user_methods(optimizer).load_state_dict
    hooks = optimizer._optimizer_load_state_dict_pre_hooks or optimizer._optimizer_load_state_dict_post_hooks
    if getattr(load, "__func__", None) is not Optimizer.load_state_dict or hooks:
        load(copy.deepcopy(state) if has_own else state)
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
    for number, value in state["state"].items():
        param = by_number.get(number, number)
        placed[param] = map_leaves(value, partial(_like_param, param=param))
    own = [{key: group[key] for key in ("params", "param_names") if key in group} for group in groups]
    made = [{**group, **kept} for group, kept in zip(sent, own, strict=True)]
    optimizer.__setstate__({"state": placed, "param_groups": made})


def _like_param(value: Any, param: Any) -> Any:
    """Returns a sharded tensor for one in the shape of the part of a sharded parameter; any other value itself."""
    local = local_of(param)
    if local is param or not isinstance(value, Tensor) or value.dim() == 0 or value.shape != local.shape:
        return value
    return like_whole(value, param)
