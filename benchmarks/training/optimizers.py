"""Optimizers of the trainings of the benchmarks. Runs inside worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

#: Decay rates of the moments of AdamW.
BETAS = (0.9, 0.95)
#: Parts of a model that Muon leaves to AdamW although they are matrices: by the beginnings of their names.
_NOT_HIDDEN = ("embedding", "position", "head", "fc2")
#: Shampoo of trainings of some hundred steps: preconditioners of blocks, every 20 steps, with the step size of RMSprop.
SHAMPOO = {
    "start_preconditioning_step": 20,
    "preconditioning_compute_steps": 20,
    "block_size": 256,
    "graft_type": 3,
    "moving_average_for_momentum": True,
}


class MuonWithAdamW(torch.optim.Muon):
    """Muon for the hidden matrices of a model, AdamW for all other parameters, in one optimizer.

    Updates of matrices are scaled to the size of those of AdamW, so that all groups have the same learning rate.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]], lr: float) -> None:
        named = list(named)
        hidden = [p for name, p in named if p.dim() == 2 and not name.startswith(_NOT_HIDDEN)]
        known = {id(p) for p in hidden}
        others = [p for _, p in named if id(p) not in known]
        super().__init__(hidden, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        self._adamw = torch.optim.AdamW(others, lr=lr, betas=BETAS)
        self.add_param_group(self._adamw.param_groups[0])

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Makes a step of Muon and one of AdamW; closures are not supported."""
        assert closure is None
        groups = self.param_groups
        # Both keep their state here, where a checkpoint or a merge looks for it.
        self._adamw.state, self._adamw.param_groups = self.state, groups[1:]
        self.param_groups = groups[:1]
        try:
            super().step()
        finally:
            self.param_groups = groups
        self._adamw.step()


def make_optimizer(model: nn.Module, name: str, lr: float, momentum: float) -> torch.optim.Optimizer:
    """Makes the optimizer "sgd", with `momentum`, "adamw", "muon", "adafactor", "soap" or "shampoo" of a model.

    SOAP and Shampoo come from the package pytorch_optimizer, which no other part of the project needs.
    """
    if name == "muon":
        return MuonWithAdamW(model.named_parameters(), lr)
    if name == "adafactor":
        return torch.optim.Adafactor(model.parameters(), lr=lr)
    if name == "soap":
        from pytorch_optimizer import SOAP

        return SOAP(model.parameters(), lr=lr)
    if name == "shampoo":
        from pytorch_optimizer import ScalableShampoo

        return ScalableShampoo(model.parameters(), lr=lr, **SHAMPOO)
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=lr, betas=BETAS)
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
