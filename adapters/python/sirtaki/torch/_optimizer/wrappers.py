"""Refuses calls of a model through DistributedDataParallel while an optimizer combines its gradients itself."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from sirtaki import errors
from sirtaki.torch._live_objects import live_objects
from sirtaki.torch._optimizer.step_errors import WRAPPED_TOO


class RefusedWrappers:
    """Refuses calls with gradients of each DistributedDataParallel that has parameters of one optimizer.

    A program may keep one that it does not call any more, so its existence alone is no error. One that is made after
    the first step is not found: the search goes through all objects of Python.
    """

    def __init__(self) -> None:
        self._hooks: list[Any] = []
        self._searched = False

    def follow(self, params: Sequence[Tensor]) -> None:
        """Refuses later calls of the wrappers that there are. Searches once, until allow(); called in each step."""
        if self._searched:
            return
        self._searched = True
        if not (distributed.is_available() and distributed.is_initialized()):
            return  # nobody makes one without a process group
        ids = {id(p) for p in params}
        for one in live_objects(DistributedDataParallel):
            shared = [p for p in _combined_by(one) if id(p) in ids]
            if shared:
                self._hooks.append(one.register_forward_pre_hook(_Refusal(shared)))

    def allow(self) -> None:
        """Allows all calls until follow()."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._searched = False


def _combined_by(wrapper: Any) -> Iterable[Tensor]:
    """Returns the parameters without those that the program has told the wrapper to ignore."""
    return getattr(wrapper, "_module_parameters", ())


class _Refusal:
    """Hook of a wrapper before its forward pass; `shared`: parameters whose gradients an optimizer combines, too."""

    def __init__(self, shared: Iterable[Tensor]) -> None:
        self._shared = [weakref.ref(param) for param in shared]

    def __reduce__(self) -> Any:
        # A copy of the wrapper has other parameters.
        return _Refusal, ((),)

    @torch.compiler.disable
    def __call__(self, called: Any, inputs: Any) -> None:
        del inputs
        if not (called.require_backward_grad_sync and torch.is_grad_enabled()):
            return
        # Parameters that were frozen when the model was wrapped, as a discriminator, may train without the wrapper.
        params = [ref() for ref in self._shared]
        if any(param is not None and param.requires_grad for param in params):
            raise errors.InvalidArgumentError(WRAPPED_TOO)
