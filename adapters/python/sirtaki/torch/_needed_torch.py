"""Says in one line that torch is missing or too old, before other modules use names that it lacks."""

from __future__ import annotations

from sirtaki._unsupported import check_library, missing_library

#: The first version with the public torch.distributed.tensor.
_LEAST = "2.5"

try:
    import torch
except ImportError as error:
    raise missing_library("sirtaki.torch", "torch", _LEAST, error) from None
check_library("sirtaki.torch", "torch", _LEAST, torch.__version__)
