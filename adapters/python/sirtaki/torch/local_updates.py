"""What local updates of torch's optimizers cannot do; what they are, says sirtaki.local_updates."""

from __future__ import annotations

import torch

from sirtaki import errors


def check_local(optimizer: torch.optim.Optimizer, params: list[torch.Tensor], sync: str, mean: bool) -> None:
    """Refuses what local updates cannot do, with the reason."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise errors.UnsupportedError(
            "local updates count steps, and LBFGS evaluates its closure as often as it likes; use local_updates=None"
        )
    if sync == "forward":
        raise errors.UnsupportedError(
            'local updates replace what sync="forward" is for: merges travel behind whole steps; leave sync out'
        )
    if not mean:
        raise errors.UnsupportedError("local updates average models, which op=Sum is not like; use op=Average")
    others = [p for p in params if p.dtype is not torch.float32 or p.device.type not in ("cpu", "cuda")]
    if others:
        raise errors.UnsupportedError(
            f"local updates merge float32 parameters on a CPU or a CUDA GPU, and one is {others[0].dtype} on "
            f"{others[0].device}; use local_updates=None, or autocast instead of a converted model"
        )
