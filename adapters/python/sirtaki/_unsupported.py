"""Libraries that are too old, and names of horovod that Sirtaki does not have; each error names the replacement."""

from __future__ import annotations

import re

_REASONS = {
    "sirtaki.torch": {
        "check_extension": "not needed; one build serves every version of torch, and sirtakirun --check looks at hosts",
    },
    "sirtaki.tensorflow": {
        "BroadcastGlobalVariablesHook": "for sessions of TensorFlow 1; use broadcast_variables(model.variables, 0)",
        "check_extension": "not needed; one build serves TensorFlow 2.16 to 2.21",
    },
}
_PAGES = {"sirtaki.torch": "docs/horovod.md", "sirtaki.tensorflow": "docs/tensorflow.md"}


def missing_attribute(module: str, name: str) -> AttributeError:
    """Returns the error for a name that `module`, one of the adapters, does not have."""
    import sirtaki

    reason = _REASONS[module].get(name)
    advice = "" if reason is None else f": {reason} ({_PAGES[module]})"
    if name in sirtaki.__all__:
        advice = f"; it is sirtaki.{name}"
    return AttributeError(f"module '{module}' has no attribute '{name}'{advice}")


def missing_library(door: str, package: str, least: str, error: ImportError, module: str = "") -> ImportError:
    """Returns the error of `door`, a module of Sirtaki, without the package that it needs."""
    return ImportError(f"{_needs(door, package, least)}: {_install(package, least)} ({error})", name=module or package)


def check_library(door: str, package: str, least: str, found: str, module: str = "") -> None:
    """Refuses a package that is older than `door`, a module of Sirtaki, needs. Raises ImportError."""
    if _numbers(found) < _numbers(least):
        raise ImportError(old_library_text(door, package, least, found), name=module or package)


def old_library_text(door: str, package: str, least: str, found: str) -> str:
    """Returns the text for a package that is too old."""
    return f"{_needs(door, package, least)}, and this is {found}: {_install(package, least)}"


def _needs(door: str, package: str, least: str) -> str:
    return f"{door} needs {package} {least} or newer"


def _install(package: str, least: str) -> str:
    return f'pip install "{package}>={least}"'


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
