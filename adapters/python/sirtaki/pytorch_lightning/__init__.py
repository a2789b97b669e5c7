"""Sirtaki for Lightning, imported as `pytorch_lightning`; sirtaki.lightning is the same for `lightning`."""

from sirtaki.torch._trainers.library import import_library
from sirtaki.torch._trainers.lightning_classes import make_classes

_made = make_classes(import_library("pytorch_lightning", "pytorch-lightning", 2, __name__))
SirtakiStrategy = _made.strategy
SirtakiCallback = _made.callback
SirtakiMetrics = _made.metrics

__all__ = ["SirtakiCallback", "SirtakiMetrics", "SirtakiStrategy"]
