"""Calls of modules, seen by one hook for the whole process: which module's call is the first use of a parameter.

A model is told by its calls, so nobody has to name it. A module uses the parameters of its own and those of modules
beneath it that are never called themselves, as nn.MultiheadAttention uses its out_proj. The hook and the changes of
Module.state_dict() and load_state_dict() exist while an optimizer listens. Models themselves are left as they are.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from threading import RLock
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from sirtaki import basics


class Listener(Protocol):
    """Wants to know before parameters are used."""

    def before_call(self, module: nn.Module) -> None:
        """`module` is about to run forward()."""

    def complete(self) -> None:
        """All parameters are about to be read."""


class _Process:
    """The listeners and what was installed for them."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.listeners: tuple[Listener, ...] = ()
        self.hook: Any = None
        self.plain: dict[str, Any] = {}


_process = _Process()


def listen(listener: Listener) -> None:
    """Tells `listener` of every call until ignore()."""
    with _process.lock:
        if not _process.listeners:
            _install()
        _process.listeners = (*_process.listeners, listener)


def ignore(listener: Listener) -> None:
    """Ends listen(); nothing is left behind by the last one."""
    with _process.lock:
        if listener not in _process.listeners:
            return
        _process.listeners = tuple(other for other in _process.listeners if other is not listener)
        if not _process.listeners:
            _uninstall()


def listening() -> int:
    """Number of listeners."""
    return len(_process.listeners)


def complete_all() -> None:
    """Every listener's parameters are about to be read."""
    for listener in _process.listeners:
        listener.complete()


basics.before_shutdown(complete_all)


def _install() -> None:
    # The hook is meant to see the wrapper of a compiled model.
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
    _process.hook = register_module_forward_pre_hook(_before_call)
    for name in ("state_dict", "load_state_dict"):
        _process.plain[name] = getattr(nn.Module, name)
        setattr(nn.Module, name, _completing(_process.plain[name]))


def _uninstall() -> None:
    _process.hook.remove()
    _process.hook = None
    for name, plain in _process.plain.items():
        if getattr(getattr(nn.Module, name), "__wrapped__", None) is plain:
            setattr(nn.Module, name, plain)
    _process.plain.clear()


def _before_call(module: nn.Module, _inputs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    for listener in _process.listeners:
        listener.before_call(module)


def _completing(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A method of Module that reads or writes all parameters."""

    @functools.wraps(plain)
    def completing(*args: Any, **kwargs: Any) -> Any:
        complete_all()
        return plain(*args, **kwargs)

    return completing


class CallMap:
    """Which of an optimizer's parameters the call of a module uses; learned from the calls themselves."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        self._mine = {id(p) for p in params}
        self._called: WeakSet[nn.Module] = WeakSet()
        # Modules without any of these parameters have (), as have those that call all modules beneath them.
        self._beneath: WeakKeyDictionary[nn.Module, tuple[int, ...]] = WeakKeyDictionary()
        self._covered: set[int] | None = None

    def add(self, param: Tensor) -> None:
        """One more parameter."""
        self._mine.add(id(param))
        self._forget()

    def _forget(self) -> None:
        self._beneath.clear()
        self._covered = None

    def beneath(self, module: nn.Module) -> tuple[int, ...]:
        """Ids of parameters of modules below `module` that are not known to be called themselves."""
        found = self._beneath.get(module)
        if found is None:
            self.note(module)
            found = self._beneath[module] = tuple(self._uncalled(module, set()))
        return found

    def note(self, module: nn.Module) -> None:
        """`module` is called."""
        if module in self._called:
            return
        if any(id(p) in self._mine for p in module.parameters()):
            self._called.add(module)
            self._forget()
        else:
            self._beneath[module] = ()

    def all_of(self, module: nn.Module) -> list[int]:
        """Ids of all these parameters in `module` and below."""
        return [id(p) for p in module.parameters() if id(p) in self._mine]

    def covered(self) -> set[int]:
        """Ids of parameters that some call known so far uses."""
        if self._covered is None:
            self._covered = set()
            for module in list(self._called):
                self._covered.update(id(p) for p in module._parameters.values())
                self._covered.update(self._uncalled(module, set()))
        return self._covered

    def _uncalled(self, module: nn.Module, seen: set[nn.Module]) -> list[int]:
        found: list[int] = []
        for child in module.children():
            if child in seen or child in self._called:
                continue
            seen.add(child)
            found.extend(id(p) for p in child._parameters.values() if id(p) in self._mine)
            found.extend(self._uncalled(child, seen))
        return found
