"""Sirtaki for Hugging Face: the Trainer of Transformers, and programs with Accelerate.

```python
from sirtaki.huggingface import SirtakiCallback

trainer = transformers.Trainer(..., callbacks=[SirtakiCallback(compression="auto")])
```

Each name needs its own library only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sirtaki.torch._trainers.huggingface_accelerator import accelerate_prepared
    from sirtaki.torch._trainers.huggingface_trainer import SirtakiCallback, add_metrics

_TRAINER, _ACCELERATOR = (f"sirtaki.torch._trainers.huggingface_{name}" for name in ("trainer", "accelerator"))
_MODULES = {"SirtakiCallback": _TRAINER, "add_metrics": _TRAINER, "accelerate_prepared": _ACCELERATOR}

__all__ = ["SirtakiCallback", "accelerate_prepared", "add_metrics"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
