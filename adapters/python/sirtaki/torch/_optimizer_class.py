"""Turns an optimizer of the program, in place, into an instance of a subclass with further methods."""

from __future__ import annotations

from typing import Any

import torch


class DistributedMarker:
    """Base of all classes that DistributedOptimizer makes."""


def rebind_scheduler_step(optimizer: Any) -> None:
    """Binds a learning-rate scheduler made earlier to the new step(): it has wrapped the old one on the object."""
    if "step" not in vars(optimizer):
        return
    bound = vars(optimizer).pop("step")
    made_step = type(optimizer).step

    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True
        return made_step(optimizer, *args, **kwargs)

    step.__dict__.update(vars(bound))
    optimizer.step = step


def extend_class(optimizer: torch.optim.Optimizer, methods: dict[str, Any]) -> None:
    """Changes the class of `optimizer` to a subclass of that class with `methods`."""
    plain = type(optimizer)
    looks = {"__doc__": plain.__doc__, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    optimizer.__class__ = type(plain.__name__, (plain, DistributedMarker), {**methods, **looks})


def plain_class(optimizer: Any) -> type:
    """Returns the class of the program's optimizer, before and after extend_class()."""
    made = next((c for c in type(optimizer).__mro__ if DistributedMarker in c.__bases__), None)
    return type(optimizer) if made is None else made.__bases__[0]


def user_methods(optimizer: Any) -> Any:
    """Returns super() of the class that extend_class() made, so that the methods are those of the user's optimizer.

    This also holds for an instance of a class derived from that one, as trainers make. Any other optimizer is returned.
    """
    made = next((c for c in type(optimizer).__mro__ if DistributedMarker in c.__bases__), None)
    return optimizer if made is None else super(made, optimizer)


def own_methods(added: type) -> dict[str, Any]:
    """Returns the attributes that a class defines itself."""
    hidden = ("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__")
    return {name: value for name, value in vars(added).items() if name not in hidden}
