"""Hooks that see the first use of a parameter: calls of modules and reads of parameters, for the whole process.

A model is recognized by the calls of its modules, so a program need not name it. A module uses its own parameters and
those of modules below it that are never called themselves, as nn.MultiheadAttention uses its out_proj. Other uses are
seen when the parameter is read: as an attribute of its module, from parameters() or named_parameters(), or in a copy of
the model. The forward hook and the replaced methods of nn.Module exist while there is a listener; modules themselves
are not changed.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from sirtaki import basics


class Listener(Protocol):
    """Is notified before parameters are used."""

    #: The key set: ids of parameters whose use the listener waits for.
    pending_by_id: dict[int, int]

    def before_call(self, module: nn.Module) -> None:
        """Called before `module` runs forward()."""

    def before_read(self, ids: Iterable[int]) -> None:
        """Called before the program reads parameters with these ids."""

    def finish_updates(self) -> None:
        """Called before the program reads all parameters."""


class _Thread(threading.local):
    """State of one thread."""

    def __init__(self) -> None:
        #: Depth of calls that visit parameters without reading their values.
        self.traversals = 0


class _Process:
    """Listeners, and the hooks installed for them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.listeners: tuple[Listener, ...] = ()
        self.hook: Any = None
        self.plain: dict[str, Any] = {}
        self.filters: list[Any] = []


_process = _Process()
_thread = _Thread()


def add_listener(listener: Listener) -> None:
    """Notifies `listener` of every call and read until remove_listener(). Installs the hooks for the first listener."""
    with _process.lock:
        if not _process.listeners:
            _install()
        _process.listeners = (*_process.listeners, listener)


def remove_listener(listener: Listener) -> None:
    """Ends add_listener(). Removes the hooks with the last listener."""
    with _process.lock:
        if listener not in _process.listeners:
            return
        _process.listeners = tuple(other for other in _process.listeners if other is not listener)
        if not _process.listeners:
            _uninstall()


def listener_count() -> int:
    """Returns the number of listeners."""
    return len(_process.listeners)


def finish_all_updates() -> None:
    """Makes every listener finish its updates, because all parameters are about to be read."""
    for listener in _process.listeners:
        listener.finish_updates()


def _forget_in_child() -> None:
    """Drops the listeners: a forked process has the parameters, but no session to wait for."""
    _process.lock = threading.RLock()
    _process.listeners = ()


basics.before_shutdown(finish_all_updates)
os.register_at_fork(before=finish_all_updates, after_in_child=_forget_in_child)


def _install() -> None:
    known = list(warnings.filters)
    # The hook is meant to see the wrapper of a compiled model, so the warning of torch does not apply.
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
    _process.filters = [entry for entry in warnings.filters if entry not in known]
    _process.hook = register_module_forward_pre_hook(_before_call)
    for name, changed in _REPLACEMENTS.items():
        _process.plain[name] = getattr(nn.Module, name)
        setattr(nn.Module, name, functools.wraps(_process.plain[name])(changed(_process.plain[name])))


def _uninstall() -> None:
    _process.hook.remove()
    _process.hook = None
    filters: Any = warnings.filters  # a list
    for entry in _process.filters:
        with suppress(ValueError):
            filters.remove(entry)
    for name, plain in _process.plain.items():
        if getattr(getattr(nn.Module, name), "__wrapped__", None) is not plain:
            continue
        if getattr(object, name, None) is plain:
            delattr(nn.Module, name)
        else:
            setattr(nn.Module, name, plain)
    _process.plain.clear()


def _before_call(module: nn.Module, _inputs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    for listener in _process.listeners:
        listener.before_call(module)


def _completing(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method of Module that reads or writes all parameters."""

    def completing(*args: Any, **kwargs: Any) -> Any:
        finish_all_updates()
        return plain(*args, **kwargs)

    return completing


def _traversing(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method of Module that visits the parameters without reading their values."""

    def traversing(*args: Any, **kwargs: Any) -> Any:
        _thread.traversals += 1
        try:
            return plain(*args, **kwargs)
        finally:
            _thread.traversals -= 1

    return traversing


def _attribute(plain: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Wraps Module.__getattr__, by which parameters are read as attributes of their module."""
    process = _process

    def attribute(self: nn.Module, name: str) -> Any:
        value = plain(self, name)
        for listener in process.listeners:
            if id(value) in listener.pending_by_id:
                listener.before_read((id(value),))
        return value

    return attribute


def _listing(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Module.named_parameters(), which parameters() uses. A program that takes one item waits for one update."""

    def listing(*args: Any, **kwargs: Any) -> Any:
        items = plain(*args, **kwargs)
        return items if torch.compiler.is_compiling() or _thread.traversals else _listed(items)

    return listing


def _listed(items: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    items = iter(items)
    for item in items:
        before_read([item[1]])
        yield item
        break
    if any(listener.pending_by_id for listener in _process.listeners):
        rest = list(items)
        before_read([p for _, p in rest])
        yield from rest
    else:
        yield from items


def before_read(params: Iterable[Tensor]) -> None:
    """Notifies the listeners that the program is about to read `params`."""
    ids = [id(p) for p in params]
    for listener in _process.listeners:
        listener.before_read(ids)


#: Replaced methods of nn.Module, and their wrappers.
_REPLACEMENTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "__getattr__": _attribute,
    "named_parameters": _listing,
    "state_dict": _completing,
    "load_state_dict": _completing,
    "_apply": _completing,
    "__reduce_ex__": _completing,
    "zero_grad": _traversing,
    "requires_grad_": _traversing,
}


def _params_of(module: nn.Module) -> Iterator[Tensor]:
    """Yields the parameters of module.parameters() without counting as a read."""
    for part in module.modules():
        yield from (p for p in part._parameters.values() if p is not None)


class ModuleParamMap:
    """Maps a module to the parameters of one optimizer that its call uses; learns from the calls themselves."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        self._params = {id(p) for p in params}
        self._called: WeakSet[nn.Module] = WeakSet()
        # Empty for modules without any of these parameters, and for those that call all modules below them.
        self._uncalled_below: WeakKeyDictionary[nn.Module, tuple[int, ...]] = WeakKeyDictionary()
        self._known_params: set[int] | None = None

    def add(self, param: Tensor) -> None:
        """Adds a parameter."""
        self._params.add(id(param))
        self._forget()

    def _forget(self) -> None:
        self._uncalled_below.clear()
        self._known_params = None

    def uncalled_params_below(self, module: nn.Module) -> tuple[int, ...]:
        """Returns ids of parameters of modules below `module` that are not known to be called themselves."""
        found = self._uncalled_below.get(module)
        if found is None:
            self.record_call(module)
            found = self._uncalled_below[module] = tuple(self._find_uncalled(module, set()))
        return found

    def record_call(self, module: nn.Module) -> None:
        """Records that `module` was called."""
        if module in self._called:
            return
        if any(id(p) in self._params for p in _params_of(module)):
            self._called.add(module)
            self._forget()
        else:
            self._uncalled_below[module] = ()

    def params_below(self, module: nn.Module) -> list[int]:
        """Returns ids of the parameters of the optimizer in `module` and below."""
        return [id(p) for p in _params_of(module) if id(p) in self._params]

    def known_params(self) -> set[int]:
        """Returns ids of the parameters that a recorded call uses."""
        if self._known_params is None:
            self._known_params = set()
            for module in list(self._called):
                self._known_params.update(id(p) for p in module._parameters.values())
                self._known_params.update(self._find_uncalled(module, set()))
        return self._known_params

    def _find_uncalled(self, module: nn.Module, seen: set[nn.Module]) -> list[int]:
        found: list[int] = []
        for child in module.children():
            if child in seen or child in self._called:
                continue
            seen.add(child)
            found.extend(id(p) for p in child._parameters.values() if id(p) in self._params)
            found.extend(self._find_uncalled(child, seen))
        return found
