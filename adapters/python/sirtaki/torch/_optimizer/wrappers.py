"""Refuses calls of a model through DistributedDataParallel while an optimizer combines its gradients itself."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from sirtaki import errors
from sirtaki.torch._live_objects import live_objects
from sirtaki.torch._optimizer.step_errors import WRAPPED_TOO


class _Wrappers:
    """Each DistributedDataParallel of the program, from the first look on.

    The first look searches all objects of Python. Later wrappers are seen when they register their model.
    """

    def __init__(self) -> None:
        self._alive: weakref.WeakSet[Any] | None = None
        #: Number of looks and of wrappers so far that came after the first look; 0 before that.
        self.version = 0

    def look(self) -> None:
        """Knows all wrappers from now on. Nobody makes one without a process group."""
        if self._alive is None and distributed.is_available() and distributed.is_initialized():
            self._alive = weakref.WeakSet(live_objects(DistributedDataParallel))
            register_module_module_registration_hook(self._on_registration)
            self.version = 1

    def with_any(self, params: Sequence[Tensor]) -> list[tuple[Any, list[Tensor]]]:
        """Returns the wrappers that combine any of `params`, with these."""
        ids = {id(p) for p in params}
        pairs = [(one, [p for p in _combined_by(one) if id(p) in ids]) for one in list(self._alive or ())]
        return [(one, shared) for one, shared in pairs if shared]

    def _on_registration(self, module: Any, name: str, submodule: Any) -> None:
        del name, submodule
        # The parameters are known when the constructor has returned.
        if isinstance(module, DistributedDataParallel) and self._alive is not None:
            self._alive.add(module)
            self.version += 1


_wrappers = _Wrappers()


class RefusedWrappers:
    """Refuses calls with gradients of each DistributedDataParallel that has parameters of one optimizer.

    A program may keep one that it does not call any more, so its existence alone is no error.
    """

    def __init__(self) -> None:
        self._hooks: list[Any] = []
        self._version = 0

    def follow(self, params: Sequence[Tensor]) -> None:
        """Refuses later calls of the wrappers that there are now. Cheap unless some are new since the last call."""
        _wrappers.look()
        if self._version != _wrappers.version:
            self.allow()
            self._version = _wrappers.version
            self._hooks = [
                one.register_forward_pre_hook(_Refusal(shared)) for one, shared in _wrappers.with_any(params)
            ]

    def allow(self) -> None:
        """Allows all calls until follow()."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._version = 0


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
