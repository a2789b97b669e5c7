"""accelerate() in a callback of a loop with events, such as Composer's, for plain models and for wrapped ones.

It runs under any launcher. Each training accumulates gradients, clips them and computes in bfloat16, then goes on from
its checkpoint, which rank 0 has written for all.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support import batches, make_wide_model, require_equal, require_state, train_pairs
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from sirtaki.torch.ddp import accelerate

folder = Path(sys.argv[1])


class SirtakiCallback:
    """Has the three calls that a trainer needs, each at its event."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def fit_start(self, loop: "Loop") -> None:
        """Called when model and optimizer exist."""
        self.handle = accelerate(loop.model, loop.optimizer, **self.settings)

    def eval_start(self, loop: "Loop") -> None:
        """Called before an evaluation."""
        self.handle.drain()

    def checkpoint_start(self, loop: "Loop") -> None:
        """Called before rank 0 saves."""
        self.handle.prepare_checkpoint()


class Loop:
    """A trainer with events."""

    def __init__(self, model: torch.nn.Module, callback: SirtakiCallback) -> None:
        self.model, self.callback = model, callback
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def fit(self, epochs: int, checkpoint: Path) -> list[float]:
        """Trains for some epochs, from the checkpoint if it exists, and writes it; returns the losses."""
        self.callback.fit_start(self)
        if checkpoint.exists():
            state = torch.load(checkpoint)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        sampler = DistributedSampler(batches())
        loader = DataLoader(batches(), batch_size=8, sampler=sampler)
        losses = []
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            no_sync = getattr(self.model, "no_sync", self.optimizer.no_sync)
            losses += train_pairs(self.model, self.optimizer, loader, no_sync)
            self.callback.eval_start(self)
            require_equal(self.model)
        self.callback.checkpoint_start(self)
        if dist.get_rank() == 0:
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, checkpoint)
        dist.barrier()
        return losses


def train(case: str, wrap: bool, local: str | None, epochs: int) -> list[float]:
    """Trains with a callback for the case."""
    model = DistributedDataParallel(make_wide_model()) if wrap else make_wide_model()
    callback = SirtakiCallback(compression="twobit:wire=gather", local_updates=local)
    losses = Loop(model, callback).fit(epochs, folder / f"{case}.pt")
    require_state(torch.load(folder / f"{case}.pt")["optimizer"], local is not None)
    assert local is not None or callback.handle.compression_report()
    return losses


dist.init_process_group("gloo")
for wrap in (False, True):
    for case, local in (("compression", None), ("local", "fixed:steps=4,delay=1,warmup=2")):
        first = train(f"{case} {wrap}", wrap, local, 2)
        later = train(f"{case} {wrap}", wrap, local, 1)
        assert sum(later[-10:]) < 6, (case, wrap, first, later)
        assert later[0] < first[0], (case, wrap, first, later)
if dist.get_rank() == 0:
    print(f"TRAINED loss {first[0]:.3f} to {later[-1]:.3f}", flush=True)
dist.destroy_process_group()
