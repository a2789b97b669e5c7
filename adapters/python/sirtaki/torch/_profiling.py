"""Ranges of torch.profiler around the phases of a step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch.autograd.profiler import record_function

P = ParamSpec("P")
R = TypeVar("R")


def profiled(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator that shows calls of a function as the range `sirtaki::name`, if this thread is profiled."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            # record_function would cost microseconds without a profiler, too.
            if not torch._C._autograd._profiler_enabled():
                return function(*args, **kwargs)
            with record_function(f"sirtaki::{name}"):
                return function(*args, **kwargs)

        return call

    return decorate
