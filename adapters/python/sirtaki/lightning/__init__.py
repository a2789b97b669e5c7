"""Sirtaki for Lightning, imported as `lightning`; sirtaki.pytorch_lightning is the same for `pytorch_lightning`.

```python
from sirtaki.lightning import SirtakiStrategy

trainer = lightning.Trainer(strategy=SirtakiStrategy(compression="auto"), devices=4)
```
"""

from sirtaki.torch._trainers.library import import_library
from sirtaki.torch._trainers.lightning_classes import make_classes

_made = make_classes(import_library("lightning.pytorch", "lightning", 2, __name__))
SirtakiStrategy = _made.strategy
SirtakiCallback = _made.callback
SirtakiMetrics = _made.metrics

__all__ = ["SirtakiCallback", "SirtakiMetrics", "SirtakiStrategy"]
