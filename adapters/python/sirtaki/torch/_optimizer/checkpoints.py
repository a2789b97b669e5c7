"""Additions of DistributedOptimizer to checkpoints, in the form that each kind of checkpoint keeps.

state_dict() has them beside the state and the groups. torch.distributed.checkpoint keeps only the state of each
parameter, by the name of the parameter. There the additions are part of that state, under one key for each rank,
because residuals differ between ranks and equal keys are saved once. A key must exist before it can be loaded, so an
optimizer that may have additions has its keys from the start.
"""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Sequence
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from sirtaki import basics
from sirtaki.torch._optimizer.local_sgd import KEY as LOCAL_KEY
from sirtaki.torch._optimizer.local_sgd import LocalSgd
from sirtaki.torch._optimizer.reducer import GradientReducer
from sirtaki.torch._optimizer.residuals import KEY
from sirtaki.torch._optimizer.shards import whole_of
from sirtaki.torch._optimizer_class import user_methods

_MODULE = "torch.distributed.checkpoint.state_dict"
_PREFIX = f"{KEY}."
#: Entries of a state of residuals that have a value for each parameter.
_BY_PARAM = ("owed", "memory")
_Entries = dict[str, dict[Tensor, bytes]]


def _caller(function: str) -> FrameType | None:
    """Returns the frame of a function of torch.distributed.checkpoint if it is among the callers; else None."""
    known = getattr(sys.modules.get(_MODULE), function, None)
    if known is None:
        return None
    code = inspect.unwrap(known).__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def only_makes_state() -> bool:
    """Returns True in the step() by which torch.distributed.checkpoint makes the state of a new optimizer."""
    return _caller("_init_optim_state") is not None


class CheckpointMethods:
    """Methods of DistributedOptimizer for checkpoints."""

    _sirtaki: GradientReducer
    _sirtaki_local: LocalSgd | None
    param_groups: list[dict[str, Any]]

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as torch does, after wait(), and the residuals of this rank. Not collective."""
        self.wait()  # type: ignore[attr-defined]
        residuals = self._sirtaki.residuals
        if residuals.may_hold_residual:
            self._sirtaki.check_between_steps("state_dict()")
        frame = _caller("_get_optim_state_dict")
        if frame is None:
            return self._sirtaki_state(residuals.state())
        state: dict[str, Any] = user_methods(self).state_dict()
        local = self._sirtaki_local
        # Flattened state may hold only tensors and numbers.
        flattened = getattr(frame.f_locals.get("info"), "flatten_optimizer_state_dict", False)
        if flattened or not (residuals.codec_leaves_residual or local is not None):
            return state
        by_param = _split_by_param(self._sirtaki, residuals.state(), None if local is None else local.state())
        key = f"{_PREFIX}{basics.rank()}"
        param_states = dict(state["state"])
        for number, param in _params_by_key(state["param_groups"], self.param_groups):
            if param.requires_grad:
                param_states[number] = {**param_states.get(number, {}), key: by_param.get(param, b"")}
        return {**state, "state": param_states}

    def gather_state(self) -> dict[str, Any]:
        """Returns state_dict() with the residuals of all ranks together, for any number of ranks. Collective."""
        self.wait()  # type: ignore[attr-defined]
        self._sirtaki.check_between_steps("gather_state()")
        return self._sirtaki_state(self._sirtaki.residuals.gather())

    def prepare_checkpoint(self) -> None:
        """Makes state_dict() of one rank a checkpoint for all, until the next step. Collective.

        It calls drain() and sums the residuals of all ranks. Call it on all ranks before one of them saves.
        """
        self.wait()  # type: ignore[attr-defined]
        self._sirtaki.check_between_steps("prepare_checkpoint()")
        self.drain()  # type: ignore[attr-defined]
        self._sirtaki.residuals.gather_for_state()

    def _sirtaki_commit(self) -> dict[str, Any]:
        """Returns the state for a commit of an elastic job: that of state_dict(), and during merges, too."""
        if self._sirtaki_local is None:
            return self.state_dict()
        if self._sirtaki.residuals.may_hold_residual:
            self._sirtaki.check_between_steps("commit()")
        return self._sirtaki_state(self._sirtaki.residuals.state(), commits=True)

    def _sirtaki_forget_loaded(self) -> None:
        """Drops the additions of a checkpoint that was loaded before. All ranks do so before they take a snapshot."""
        self._sirtaki.residuals.load(None)
        if self._sirtaki_local is not None:
            self._sirtaki_local.forget_loaded()

    def _sirtaki_state(self, residual_state: dict[str, Any] | None, commits: bool = False) -> dict[str, Any]:
        state = user_methods(self).state_dict()
        local = self._sirtaki_local
        local_state = None if local is None else local.committed_state() if commits else local.state()
        own = {KEY: residual_state, LOCAL_KEY: local_state}
        return {**state, **{key: value for key, value in own.items() if value is not None}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state as torch does, after wait(). Not collective.

        If every rank loads its own state_dict() before the first step, residuals and codec state are restored. With
        another number of ranks, or one checkpoint for all, the known residuals are divided among the ranks; the log
        says so. The same holds for a result of get_optimizer_state_dict() of torch.distributed.checkpoint.
        """
        self.wait()  # type: ignore[attr-defined]
        state, entries = _strip_entries(state_dict, self.param_groups)
        residual_state, local = state.pop(KEY, None), state.pop(LOCAL_KEY, None)
        if entries:
            residual_state, local = _merge_params(self._sirtaki, entries)
        if entries or residual_state is not None or _caller("_load_optim_state_dict") is None:
            self._sirtaki.residuals.load(residual_state)
        if self._sirtaki_local is not None:
            self._sirtaki_local.load(local)
        user_methods(self).load_state_dict(state)

    def flush(self) -> None:
        """Applies the residuals of compressed gradients to the model: one more step, with their mean over the ranks.

        Collective. Call it before the last checkpoint or evaluation. Only compressed parameters take part, with the
        current learning rate. All residuals are zero afterwards.
        """
        self.wait()  # type: ignore[attr-defined]
        self._sirtaki.check_between_steps("flush()")
        means = self._sirtaki.residuals.drain_mean()
        if not means:
            return
        params = self._sirtaki.params
        program_grads = [p.grad for p in params]
        for i, p in enumerate(params):
            p.grad = means.get(i)
        try:
            self._sirtaki_apply()  # type: ignore[attr-defined]
        finally:
            for p, grad in zip(params, program_grads, strict=True):
                p.grad = grad


def _params_by_key(saved: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> list[tuple[Any, Tensor]]:
    """Returns pairs of the number or name of a parameter in a saved state, and the parameter."""
    ours = chain.from_iterable(group["params"] for group in groups)
    return list(zip(chain.from_iterable(group["params"] for group in saved), ours, strict=False))


def _split_by_param(
    reducer: GradientReducer, residual_state: dict[str, Any] | None, local: dict[str, Any] | None
) -> dict[Tensor, bytes]:
    """Returns the additions as bytes, by parameter; those of no parameter are stored with the first one."""
    found: dict[Tensor, bytes] = {}
    if residual_state is None and local is None:
        return found
    saved = {} if residual_state is None else residual_state
    about = {key: value for key, value in saved.items() if key not in _BY_PARAM}
    for i, (name, param) in enumerate(zip(reducer.names, reducer.params, strict=True)):
        part: dict[str, Any] = {"about": about}
        for key in _BY_PARAM:
            part[key] = saved.get(key, {}).get(name)
        part["local"] = local if i == 0 else None
        buffer = io.BytesIO()
        torch.save(part, buffer)
        found[whole_of(param)] = buffer.getvalue()
    return found


def _strip_entries(state_dict: dict[str, Any], groups: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], _Entries]:
    """Returns a state without our additions, and the additions by key of their rank."""
    state, entries = dict(state_dict), _Entries()
    param_states = state.get("state")
    if not isinstance(param_states, dict):
        return state, entries
    params = dict(_params_by_key(state.get("param_groups", []), groups))
    cleaned: dict[Any, Any] = {}
    for number, values in param_states.items():
        ours = [key for key in values if str(key).startswith(_PREFIX)] if isinstance(values, dict) else []
        for key in ours:
            entries.setdefault(key, {})
            if number in params and values[key]:
                entries[key][params[number]] = values[key]
        rest = {key: value for key, value in values.items() if key not in ours} if ours else values
        if rest or not ours:
            cleaned[number] = rest
    state["state"] = cleaned
    return state, entries


def _merge_params(reducer: GradientReducer, entries: _Entries) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Inverts _split_by_param() for the entries of this rank if there are any, else of the lowest rank."""
    rank_entries = entries.get(f"{_PREFIX}{basics.rank()}") or entries[min(entries, key=_rank_of)]
    residual_state: dict[str, Any] = {key: {} for key in _BY_PARAM}
    local = None
    for name, param in zip(reducer.names, reducer.params, strict=True):
        if (whole := whole_of(param)) in rank_entries:
            part = torch.load(io.BytesIO(rank_entries[whole]), map_location="cpu", weights_only=True)
            residual_state.update(part["about"])
            local = part["local"] if local is None else local
            by_param = {key: {**residual_state[key], name: part[key]} for key in _BY_PARAM if part[key] is not None}
            residual_state.update(by_param)
    return residual_state if "rank" in residual_state else None, local


def _rank_of(key: str) -> int:
    return int(key.removeprefix(_PREFIX))
