"""The subclass that an optimizer of the program becomes in place, and the methods of the class above it."""

from __future__ import annotations

from typing import Any

import torch


class DistributedMarker:
    """Base of all classes made by DistributedOptimizer."""


def rebind_scheduler_step(optimizer: Any) -> None:
    """A learning-rate scheduler made before has bound the old step() to the object; binds it to the new one."""
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
    """Gives `optimizer` a subclass of its class that has `methods`."""
    plain = type(optimizer)
    looks = {"__doc__": plain.__doc__, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    optimizer.__class__ = type(plain.__name__, (plain, DistributedMarker), {**methods, **looks})


def user_methods(optimizer: Any) -> Any:
    """Returns super() of the class that extend_class() made: methods of the user's optimizer; else the optimizer.

    Also for an instance of a class derived from that one, as trainers make for themselves.
    """
    made = next((c for c in type(optimizer).__mro__ if DistributedMarker in c.__bases__), None)
    return optimizer if made is None else super(made, optimizer)


def own_methods(added: type) -> dict[str, Any]:
    """What a class defines itself."""
    hidden = ("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__")
    return {name: value for name, value in vars(added).items() if name not in hidden}
