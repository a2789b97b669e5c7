"""Checks arguments of DistributedOptimizer and makes ReducerOptions of them."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import torch

from sirtaki import basics, errors
from sirtaki.compression import option_text
from sirtaki.errors import require
from sirtaki.ops import ReduceOp, check_reduce_op
from sirtaki.process_sets import ProcessSet
from sirtaki.torch._optimizer.gradient_layout import ReducerOptions
from sirtaki.torch._optimizer.momentum_correction import MomentumCorrection, correction_of
from sirtaki.torch._optimizer.parameters import stream_names
from sirtaki.torch.compression import choice_of, suited
from sirtaki.torch.ops import Average, Sum


def checked_passes(passes: Any) -> int:
    """Returns backward_passes_per_step as an int. Raises InvalidArgumentError below 1 and for other types."""
    well_formed = isinstance(passes, Integral) and passes >= 1
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


def fit_options(
    optimizer: torch.optim.Optimizer, options: ReducerOptions
) -> tuple[ReducerOptions, MomentumCorrection | None]:
    """Adapts the choice of compression to the optimizer; returns it with the momentum correction, if there is one.

    Raises:
        InvalidArgumentError: the momentum of the optimizer does not match the correction.
    """
    if options.compressor is not None:
        return options, None
    chosen = option_text() if options.codec is None else options.codec
    text = suited(chosen, optimizer)
    if text != chosen:
        options = replace(options, codec=text)
    correction = correction_of(text)
    if correction is not None:
        correction.check(optimizer)
    return options, correction
