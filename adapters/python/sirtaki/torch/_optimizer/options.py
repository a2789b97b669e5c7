"""ReducerOptions: options of the reduction of gradients, made from checked arguments of DistributedOptimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import torch

from sirtaki import basics, errors
from sirtaki.compression import option_text
from sirtaki.errors import require
from sirtaki.local_updates import LocalUpdates
from sirtaki.ops import Average, Ops, ReduceOp, Sum, check_reduce_op
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.torch._adapter import torch_ops
from sirtaki.torch._optimizer.momentum_correction import MomentumCorrection, correction_of
from sirtaki.torch._optimizer.parameters import stream_names
from sirtaki.torch.compression import Choice, Compression, choice_of, suited


@dataclass(frozen=True)
class ReducerOptions:
    """Options of the reduction of gradients; the same on all ranks."""

    stream_name: str
    sync: str  # "backward": done when backward returns; "step": when synchronize() returns
    op: ReduceOp
    mean: bool  # True if the result is the mean over ranks, whatever the reduction and the factors
    codec: str | None
    compressor: Any  # the program's own compressor, or None; see user_compressor.py
    prescale: float
    postscale: float
    sparse_as_dense: bool
    first_step: int = 0  # steps made before, as far as this rank knows
    process_set: ProcessSet = global_process_set  # ranks whose gradients are combined; a rank outside is alone

    @property
    def ops(self) -> Ops:
        """Operations among the participating ranks."""
        return torch_ops.within(self.process_set)

    @property
    def size(self) -> int:
        """Number of participating ranks; 1 outside the process set."""
        return self.process_set.size() if self.process_set.included() else 1

    @property
    def rank(self) -> int:
        """Number of this rank among them; 0 outside the process set."""
        return self.process_set.rank() if self.process_set.included() else 0


def checked_passes(passes: Any) -> int:
    """Returns backward_passes_per_step as an int. Raises InvalidArgumentError below 1 and for other types."""
    well_formed = isinstance(passes, Integral) and int(passes) >= 1
    require(well_formed, f"backward_passes_per_step is {passes!r}, not an integer of 1 or more")
    return int(passes)


def make_options(  # noqa: PLR0917  (as DistributedOptimizer's)
    op: ReduceOp,
    compression: Any,
    gradient_predivide_factor: float,
    sync: str | None,
    sparse_as_dense: bool,
    process_set: ProcessSet,
) -> ReducerOptions:
    """Returns the options of a reducer with the next stream name of the set, from arguments of DistributedOptimizer.

    Raises:
        InvalidArgumentError: an argument is wrong.
        UnsupportedError: sync="forward" with a compressor of the program.
    """
    op = check_reduce_op(op)
    require(op in (Average, Sum), "op must be Average, Sum or Adasum")
    positive = isinstance(gradient_predivide_factor, Real) and 0 < gradient_predivide_factor < math.inf
    require(positive, f"gradient_predivide_factor is {gradient_predivide_factor!r}, not a positive number")
    if gradient_predivide_factor != 1.0:
        require(op is Average, "gradient_predivide_factor needs op=Average")
    chosen = basics.option("torch.sync") if sync is None else sync
    known = ("backward", "step", "forward")
    require(chosen in known, f'sync is "{chosen}", must be "backward", "step" or "forward"')
    refuse_in_elastic_job(chosen == "forward", 'sync="forward" applies gradients late', 'sync="backward"')
    refuse_in_elastic_job(
        gradient_predivide_factor != 1.0, "gradient_predivide_factor depends on the number of ranks", "1.0"
    )
    prescale, postscale = 1.0, 1.0
    if gradient_predivide_factor != 1.0:
        # The average as a sum: divided by the factor before, multiplied by factor / size afterwards.
        op, prescale, postscale = Sum, 1.0 / gradient_predivide_factor, gradient_predivide_factor / process_set.size()
    mean = op is Average or prescale != 1.0 or postscale != 1.0
    codec, compressor = choice_of(compression)
    if compressor is not None and chosen == "forward":
        raise errors.UnsupportedError(
            'sync="forward" sends gradients by streams, which a compressor of your own does not support; '
            'use sync="backward" or one of Compression'
        )
    stream = stream_names.next(process_set)
    return ReducerOptions(
        stream, chosen, op, mean, codec, compressor, prescale, postscale, sparse_as_dense, process_set=process_set
    )


def refuse_in_elastic_job(wanted: bool, what: str, instead: str) -> None:
    """Raises UnsupportedError for something wanted that does not survive the loss of a rank, in a job that may."""
    if wanted and basics.is_elastic():
        raise errors.UnsupportedError(
            f"{what}, so it is not for jobs that go on without lost ranks (elastic.min); use {instead}"
        )


def default_choice() -> Choice:
    """Returns the compression of accelerate() without a choice of the program: the options', else "auto"."""
    given = basics.option("compression.rules") or basics.option_source("compression.codec") != "default"
    return Compression.none if given else "auto"


def fit_options(
    optimizer: torch.optim.Optimizer | None, options: ReducerOptions, local: LocalUpdates | None
) -> tuple[ReducerOptions, MomentumCorrection | None]:
    """Adapts the choice of compression to the optimizer; returns it with the momentum correction, if there is one.

    Args:
        optimizer: the optimizer; None: an unknown one.
        options: the options.
        local: the local updates that choose compression for themselves; None: none.

    Raises:
        InvalidArgumentError: the momentum of the optimizer does not match the correction.
    """
    if options.compressor is not None:
        return options, None
    if local is not None:
        options = replace(options, codec=local.gradient_compression(options.codec, option_text()))
    chosen = option_text() if options.codec is None else options.codec
    text = suited(chosen, optimizer)
    if text != chosen:
        options = replace(options, codec=text)
    correction = correction_of(text)
    if correction is not None:
        correction.check(optimizer)
    return options, correction
