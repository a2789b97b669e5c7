"""Residuals of compressed gradients: in checkpoints, with another number of ranks, and at the end of training.

The residual of a rank is the part of its gradients that compression has not sent yet. state_dict() never communicates,
so a checkpoint holds the residuals of the rank that wrote it; gather() makes one with the sum of all ranks. Residuals
that were loaded before the first step are given to the runtime when it opens the stream. If every rank has loaded its
own, nothing is sent, and codecs keep their state: momentum, thresholds, factors. Otherwise the known residuals are
divided among the current ranks, so that the model still gets all of them, and codecs start with fresh state.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from sirtaki import basics, errors
from sirtaki.compression import option_text
from sirtaki.errors import require
from sirtaki.ops import ReduceOp
from sirtaki.torch._adapter import real_count
from sirtaki.torch._optimizer.options import ReducerOptions

#: Key in state_dict() of an optimizer.
KEY = "sirtaki"
#: Rank of a state that holds the sum of all ranks.
ALL = -1
_NO_CHECKPOINT = -2
#: Dtypes that codecs compress: float32, and pairs of it.
_COMPRESSIBLE_DTYPES = (torch.float32, torch.complex64)
#: Codecs without residuals.
_CODECS_WITHOUT_RESIDUAL = ("none", "fp16", "bf16")

_log = logging.getLogger("sirtaki")


class ResidualStore:
    """Residuals of one optimizer. Used from the thread that steps."""

    def __init__(self, names: list[str], params: list[Tensor], options: ReducerOptions) -> None:
        self._names, self._params, self._options = names, params, options
        self._ops = options.ops
        self._stream: Any = None
        self._slots: list[int] = []
        self._loaded: dict[str, Any] | None = None
        #: `_loaded` is what the stream of the session before held.
        self._kept = False
        self._steps = 0
        #: Result of gather() for state() until the next step, in a list of one; [] if there is none.
        self._gathered: list[dict[str, Any] | None] = []
        #: Value of `steps` at which the stream had no residuals.
        self._taken_at = -1

    # ---- the stream ----

    @property
    def steps(self) -> int:
        """Steps of the training so far, for densities that warm up."""
        return self._steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps = steps
        self._gathered = []

    @property
    def has_loaded_state(self) -> bool:
        """True if a loaded checkpoint has not been given to the runtime yet."""
        return self._loaded is not None

    def stream_opened(self, stream: Any, slots: list[int], shared: bool) -> None:
        """Called when the stream is open, before any gradient. Collective if `shared`: a rank has loaded a state."""
        self._stream, self._slots = stream, slots
        if not shared:
            return
        before = self._loaded
        try:
            self._redistribute()
        except errors.RanksChangedError:
            self._loaded = before
            raise
        self._kept = False

    def stream_closed(self) -> None:
        """Called when the stream is closed, with its residuals."""
        self._stream = None

    def keep(self) -> None:
        """Copies what the stream holds for the one that follows it in the next session. The stream must be idle."""
        if self._stream is None or not self.codec_leaves_residual:
            return
        if self._loaded is not None and not self._kept:
            return  # the state of a checkpoint, which the stream has not taken yet
        self._gathered = []
        # A step that a loss has broken off may have an error for the residuals, too; they are lost then.
        with suppress(errors.SirtakiError):
            self._loaded = self.state() or {"steps": self.steps, "owed": {}, "memory": {}}
            self._kept = True

    def settle(self) -> None:
        """Makes what was kept that of the present rank: residuals stay where they are, whatever the number of ranks."""
        self._stream = None
        if self._kept and self._loaded is not None:
            rank, size = self._rank_and_size()
            self._loaded = {**self._loaded, "rank": rank, "size": size}

    def report(self) -> list[dict[str, Any]]:
        """Returns a row for each of these tensors in the stream; [] before the first step. Not collective."""
        rows: list[dict[str, Any]] = [] if self._stream is None else json.loads(self._stream.tensors_json())
        mine = set(self._names)
        return [row for row in rows if row["name"] in mine]

    def report_loss(self, loss: float) -> None:
        """Reports the loss of this rank to a policy that weighs ranks by loss; no effect before the first step."""
        if self._stream is not None:
            self._stream.report_loss(loss)

    @property
    def may_hold_residual(self) -> bool:
        """True if this rank has a residual, or a codec that makes one."""
        return any(row["owed_norm"] > 0 or row["codec"] not in _CODECS_WITHOUT_RESIDUAL for row in self.report())

    @property
    def codec_leaves_residual(self) -> bool:
        """True if the chosen codec may leave a residual, now or from the first step on."""
        text = option_text() if self._options.codec is None else self._options.codec
        return self._options.compressor is None and text not in _CODECS_WITHOUT_RESIDUAL

    def _with_residual(self, report: list[dict[str, Any]]) -> list[int]:
        """Returns the indices of parameters with a residual on this rank."""
        return self._indices({row["name"] for row in report if row["owed_norm"] > 0})

    def _with_residual_on_any_rank(self) -> list[int]:
        """Returns the indices of parameters with a residual on any rank. Collective."""
        flags = torch.zeros(len(self._names), dtype=torch.uint8, device="cpu")
        flags[self._with_residual(self.report())] = 1
        work = self._ops.allreduce(flags, f"{self._options.stream_name}.owing", ReduceOp.MAX, (1.0, 1.0), in_place=True)
        return self._ops.start([work])[0].wait().nonzero().flatten().tolist()

    # ---- checkpoints ----

    def state(self) -> dict[str, Any] | None:
        """Returns residuals and codec state of this rank; None if there are none. Not collective, not during a step."""
        if self._loaded is not None:
            return self._loaded
        if self._gathered:
            return self._gathered[0]
        report = self.report()
        residuals = {self._names[i]: self._residual(i) for i in self._with_residual(report)}
        codec_state = self._codec_state(report)
        if not residuals and not codec_state:
            return None
        rank, size = self._rank_and_size()
        return {"rank": rank, "size": size, "steps": self.steps, "owed": residuals, "memory": codec_state}

    def gather(self) -> dict[str, Any] | None:
        """Returns the sum of the residuals of all ranks. Collective."""
        if self._stream is None:
            loaded = self._loaded
            return loaded if loaded is not None and loaded["rank"] == ALL else None
        totals = self._sum({i: self._residual(i) for i in self._with_residual_on_any_rank()})
        residuals = {self._names[i]: total for i, total in totals.items()}
        return {"rank": ALL, "size": self._options.size, "steps": self.steps, "owed": residuals} if residuals else None

    def gather_for_state(self) -> None:
        """Lets state() return the sum of the residuals of all ranks until the next step. Collective.

        Raises:
            InvalidArgumentError: before the first step, with residuals loaded that are those of one rank.
        """
        if self._stream is not None:
            self._gathered = [self.gather()]
            return
        require(
            self._loaded is None or self._loaded["rank"] == ALL or self._loaded["size"] == 1,
            "prepare_checkpoint() before the first step would save the loaded residuals of one rank for all: keep the "
            "checkpoint that was loaded, or make a step first",
        )

    def load(self, state: dict[str, Any] | None) -> None:
        """Loads a result of state() or gather(); None clears the residuals. Not collective.

        Raises:
            InvalidArgumentError: the state does not fit the parameters, or is another rank's after the first step.
        """
        self._gathered = []
        self._kept = False
        if state is not None:
            self._check(state)
            self.steps = state.get("steps", 0)
        if self._stream is None:
            self._loaded = state
            return
        if state is not None and state["rank"] != ALL and (state["rank"], state["size"]) != self._rank_and_size():
            rank, size = self._rank_and_size()
            raise errors.InvalidArgumentError(
                f"{_origin_text(state)} cannot be loaded by rank {rank} of {size} after the first step: load the "
                "checkpoint before it, or into a new optimizer, or write it with gather_state()"
            )
        own = state if state is not None and (state["rank"], state["size"]) == self._rank_and_size() else {}
        self._taken_at = -1
        self._set_residuals({} if state is None else self._part_of(state))
        self._load_codec_state(own.get("memory", {}))

    def _check(self, state: dict[str, Any]) -> None:
        well_formed = isinstance(state, dict) and {"rank", "size", "owed"} <= state.keys()
        require(well_formed, f"the checkpoint's '{KEY}' is not what state_dict() or gather_state() gave")
        shapes = {name: p.shape for name, p in zip(self._names, self._params, strict=True)}
        for name, value in state["owed"].items():
            require(
                name in shapes,
                f"{_origin_text(state)} has residuals of {name}, which is no parameter of this optimizer",
            )
            same = value.shape == shapes[name]
            require(same, f"{_origin_text(state)}: {name} is {list(value.shape)} there and {list(shapes[name])} here")

    def _redistribute(self) -> None:
        """Agrees on the residuals. Each rank may have loaded the same checkpoint, another one, or none. Collective."""
        state, self._loaded = self._loaded, None
        here = [_NO_CHECKPOINT, 0] if state is None else [state["rank"], state["size"]]
        mine = torch.tensor([here], dtype=torch.int64, device="cpu")
        work = self._ops.allgather(mine, f"{self._options.stream_name}.checkpoints")
        held = [tuple(row) for row in self._ops.start([work])[0].wait().tolist()]
        if held == [(rank, self._options.size) for rank in range(self._options.size)]:
            assert state is not None
            self._set_residuals(state["owed"])
            self._load_codec_state(state.get("memory", {}))
            return
        sizes = sorted({size for rank, size in held if rank != _NO_CHECKPOINT})
        if len(sizes) > 1 and basics.is_elastic():
            # A second loss has come before all have committed; the smallest number of ranks is the newest.
            held = [place if place[1] == sizes[0] else (_NO_CHECKPOINT, 0) for place in held]
            state = state if state is not None and state["size"] == sizes[0] else None
            sizes = sizes[:1]
        if not sizes:
            return  # another store of the stream has the state
        require(len(sizes) == 1, f"checkpoints of {' and '.join(map(str, sizes))} ranks were loaded together; load one")
        # Each residual counts once, from the first rank that has it; the sum of all ranks replaces the others.
        wanted = [ALL] if (ALL, sizes[0]) in held else sorted({rank for rank, _ in held if rank != _NO_CHECKPOINT})
        mine_counts = state is not None and any(held.index((rank, sizes[0])) == self._options.rank for rank in wanted)
        known = state["owed"] if state is not None and mine_counts else {}
        totals = self._sum({i: self._in_param_layout(i, known.get(self._names[i])) for i in self._compressible()})
        parts = sizes[0] if self._options.mean else self._options.size
        self._set_residuals({self._names[i]: total / parts for i, total in totals.items()})
        if self._options.rank == 0:
            _log.warning("%s", _redistribution_text(sizes[0], wanted))

    def add_to_gradients(self) -> None:
        """Adds the residuals to the gradients of a step in which this rank sends nothing. Not collective.

        Residuals are those of a checkpoint, or those of earlier steps in the stream, which loses them. Residuals of
        momentum correction are steps: SGD with a momentum of m would make 1 / (1 - m) times the step of what is added
        to one gradient, so they are scaled by 1 - m.
        """
        state, self._loaded = self._loaded, None
        self._gathered = []
        momenta: dict[str, float] = {}
        if state is None and self._stream is not None and self._taken_at != self.steps:
            momenta = {row["name"]: row["momentum"] for row in self.report()}
            state = self.state()
            self._set_residuals({})
        self._taken_at = self.steps
        if state is None:
            return
        residuals = self._part_of(state)
        for name, param in zip(self._names, self._params, strict=True):
            if name in residuals:
                value = residuals[name].to(param.device, param.dtype) * (1.0 - momenta.get(name, 0.0))
                if param.grad is None:
                    param.grad = value
                elif param.grad.is_sparse:
                    param.grad = value + param.grad
                else:
                    param.grad.add_(value)
        if state["size"] != self._options.size:
            _log.warning("%s", _redistribution_text(state["size"], [state["rank"]]))

    # ---- the end ----

    def drain_mean(self) -> dict[int, Tensor]:
        """Returns the means of the residuals by index of the parameter, and clears the residuals. Collective."""
        self._gathered = []
        if self._stream is None:
            return {}
        residuals = {i: self._residual(i) for i in self._with_residual_on_any_rank()}
        results = self._combine(residuals, self._options.op, self._options.postscale)
        self._set_residuals({})
        return {i: mean.to(self._params[i].device) for i, mean in results.items()}

    # ---- helpers ----

    def _residual(self, index: int) -> Tensor:
        """Returns the residual of a parameter on the CPU, wherever the parameter is."""
        out = torch.empty_like(self._params[index].detach(), device="cpu")
        self._stream.residual(self._slots[index], out.data_ptr(), real_count(out))
        return out

    def _in_param_layout(self, index: int, value: Tensor | None) -> Tensor:
        """Returns a copy in the memory order of the parameter; zeros for None."""
        zeros = torch.zeros_like(self._params[index].detach(), device="cpu")
        return zeros if value is None else zeros.copy_(value)

    def _set_residuals(self, residuals: dict[str, Tensor]) -> None:
        """Sets the residuals. The residual of an uncompressed tensor is sent with its next gradient."""
        with_residual = set(self._with_residual(self.report()))
        for i in self._compressible():
            value = residuals.get(self._names[i])
            if value is not None or i in with_residual:
                given = self._in_param_layout(i, value)
                self._stream.set_residual(self._slots[i], given.data_ptr(), real_count(given))

    def _codec_state(self, report: list[dict[str, Any]]) -> dict[str, tuple[list[int], Tensor]]:
        """Returns the codec state beside residuals, with the order of the elements."""
        found = {}
        for i in self._compressed(report):
            blob = self._stream.memory(self._slots[i])
            if blob:
                found[self._names[i]] = (self._order(i), torch.frombuffer(bytearray(blob), dtype=torch.uint8))
        return found

    def _load_codec_state(self, codec_state: dict[str, tuple[list[int], Tensor]]) -> None:
        """Loads codec state; clears that of other tensors, and of tensors with another order of elements."""
        compressed = set(self._compressed(self.report()))
        for i in self._compressible():
            order, blob = codec_state.get(self._names[i], ([], None))
            given = b"" if blob is None or order != self._order(i) else blob.numpy().tobytes()
            if given or i in compressed:
                self._stream.set_memory(self._slots[i], given)

    def _order(self, index: int) -> list[int]:
        return list(torch.empty_like(self._params[index].detach(), device="meta").stride())

    def _compressed(self, report: list[dict[str, Any]]) -> list[int]:
        return self._indices({row["name"] for row in report if row["codec"] not in _CODECS_WITHOUT_RESIDUAL})

    def _indices(self, names: set[str]) -> list[int]:
        return [i for i, name in enumerate(self._names) if name in names]

    def _compressible(self) -> list[int]:
        return [i for i, slot in enumerate(self._slots) if slot >= 0 and self._params[i].dtype in _COMPRESSIBLE_DTYPES]

    def _sum(self, values: dict[int, Tensor]) -> dict[int, Tensor]:
        return self._combine(values, ReduceOp.SUM, 1.0)

    def _combine(self, values: dict[int, Tensor], op: ReduceOp, postscale: float) -> dict[int, Tensor]:
        stem = f"{self._options.stream_name}.owed"
        work = [
            self._ops.allreduce(value, f"{stem}.{self._names[i]}", op, (1.0, postscale), in_place=True)
            for i, value in values.items()
        ]
        handles = self._ops.start(work) if work else []
        return {i: handle.wait() for i, handle in zip(values, handles, strict=True)}

    def _rank_and_size(self) -> tuple[int, int]:
        return self._options.rank, self._options.size

    def _part_of(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """Returns the part of a state that this rank takes without the knowledge of other ranks."""
        if (state["rank"], state["size"]) == self._rank_and_size():
            return state["owed"]
        parts = state["size"] if self._options.mean else self._options.size
        return {name: value / parts for name, value in state["owed"].items()}


def _origin_text(state: dict[str, Any]) -> str:
    who = "all ranks" if state["rank"] == ALL else f"rank {state['rank']}"
    return f"a checkpoint of {who} of {state['size']}"


def _redistribution_text(size: int, ranks: list[int]) -> str:
    text = (
        f"residuals of a run with {size} ranks: every rank takes the same share of their sum, and momenta and "
        "thresholds of codecs begin anew"
    )
    missing = [rank for rank in range(size) if ranks != [ALL] and rank not in ranks]
    if missing:
        text += (
            f". The residuals of ranks {', '.join(map(str, missing))} are not in the loaded checkpoints, and lost; "
            "gather_state() writes a checkpoint with all residuals"
        )
    return text
