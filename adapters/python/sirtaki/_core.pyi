"""The extension module; its calls are those of adapters/c/sirtaki.h."""

from typing import Any

def __getattr__(name: str) -> Any: ...
