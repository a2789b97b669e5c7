"""Ranges of torch.profiler around the phases of a step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd.profiler import record_function
from torch.futures import Future

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


def profiled_until(name: str, future: Future[Any]) -> Future[Any]:
    """Shows the time until a future is set as the range `sirtaki::name`, if this thread is profiled.

    Another thread may set it. Returns the future to use instead.
    """
    if not torch._C._autograd._profiler_enabled():
        return future
    with record_function(f"sirtaki::{name}") as shown:
        ended: Future[Any] = shown._call_end_callbacks_on_future(future)
    return ended
