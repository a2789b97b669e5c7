"""Imports the library of a trainer, or says in one line which one is missing or too old."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


def import_library(module: str, package: str, major: int, door: str) -> Any:
    """Returns a module of the package of a trainer.

    Args:
        module: such as "lightning.pytorch".
        package: name for pip.
        major: oldest major version.
        door: the module of Sirtaki that needs it.

    Raises:
        ImportError: the package is missing or too old.
    """
    needs = f"{door} needs {package} {major} or newer"
    fix = f'pip install "{package}>={major}"'
    try:
        top: ModuleType = importlib.import_module(module.partition(".")[0])
        found = importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{needs}: {fix} ({error})", name=module) from None
    version = str(getattr(top, "__version__", "0"))
    if int(version.partition(".")[0]) < major:
        raise ImportError(f"{needs}, and this is {version}: {fix}", name=module)
    return found
