"""Names of the parameters of an optimizer, and of its stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from sirtaki import errors
from sirtaki.errors import require
from sirtaki.process_sets import ProcessSet


class StreamNames:
    """Numbers streams in the order of creation, which is the same on all ranks of a process set."""

    def __init__(self) -> None:
        self.counts: Counter[ProcessSet] = Counter()

    def next(self, process_set: ProcessSet) -> str:
        """Returns the name of the next stream of a process set."""
        name = f"optimizer.{self.counts[process_set]}"
        self.counts[process_set] += 1
        return name


stream_names = StreamNames()


def refuse_sharded(names: list[str], params: list[Tensor]) -> None:
    """Refuses sharded parameters. Raises UnsupportedError."""
    for name, param in zip(names, params, strict=True):
        if hasattr(param, "_local_tensor") or getattr(param, "_fsdp_flattened", False):
            raise errors.UnsupportedError(
                f"{name} is a part of a parameter ({type(param).__name__}), as FSDP and tensor parallelism make them. "
                "These combine gradients themselves: use the plain optimizer with sirtaki.torch.fsdp.accelerate() "
                "(docs/fsdp.md), or with Sirtaki as the backend of torch.distributed (docs/pytorch_distributed.md)"
            )


def named_params(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> tuple[list[str], list[Tensor], dict[Tensor, str]]:
    """Returns names and parameters that need gradients, and the names of all parameters.

    The order is that of `named_parameters`; without names, that of the groups.

    Raises:
        InvalidArgumentError: names are malformed, repeated or missing.
        UnsupportedError: a parameter is sharded.
    """
    groups = [(g, i, p) for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])]
    if named_parameters is None:
        pairs = [(f"group.{g}.{i}", p) for g, i, p in groups]
    else:
        given = list(named_parameters) if isinstance(named_parameters, Iterable) else [None]
        well_formed = all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in given)
        require(well_formed, "named_parameters must be pairs (name, parameter), as model.named_parameters() gives them")
        twice = [name for name, count in Counter(name for name, _ in given).items() if count > 1]
        require(not twice, f"named_parameters has a name more than once: {', '.join(twice)}")
        known = {id(param) for _, param in given}
        missing = [f"group {g}, parameter {i}" for g, i, p in groups if id(p) not in known]
        require(
            not missing,
            f"named_parameters lacks {len(missing)} of the optimizer's parameters: {'; '.join(missing[:5])}",
        )
        mine = {id(p) for _, _, p in groups}
        pairs = [(name, p) for name, p in given if id(p) in mine]
    unique = {id(p): (name, p) for name, p in reversed(pairs)}
    every = list(reversed(unique.values()))
    ordered = [(name, p) for name, p in every if p.requires_grad]
    names, params = [name for name, _ in ordered], [p for _, p in ordered]
    refuse_sharded(names, params)
    return names, params, {p: name for name, p in every}
