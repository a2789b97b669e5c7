"""Imports the library of a trainer, or says in one line which one is missing or too old."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from sirtaki._unsupported import check_library, missing_library


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
    least = str(major)
    try:
        top: ModuleType = importlib.import_module(module.partition(".")[0])
        found = importlib.import_module(module)
    except ImportError as error:
        raise missing_library(door, package, least, error, module) from None
    check_library(door, package, least, str(getattr(top, "__version__", "0")), module)
    return found
