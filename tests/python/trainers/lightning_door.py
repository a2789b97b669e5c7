"""SirtakiStrategy, SirtakiCallback and SirtakiMetrics in Lightning, under either of its two names. Runs under torchrun.

Each training accumulates gradients, clips them and computes in bfloat16, then goes on from its checkpoint.
"""

import csv
import importlib
import sys
from pathlib import Path

import torch
from support import batches, make_wide_model, require_equal, require_state
from torch.utils.data import DataLoader

folder, name = Path(sys.argv[1]), sys.argv[2]
pl = importlib.import_module("lightning.pytorch" if name == "lightning" else name)
door = importlib.import_module(f"sirtaki.{name}")
LOCAL = "fixed:steps=4,delay=1,warmup=2"


class Module(pl.LightningModule):
    """A model and its loss, with a validation that requires equal models."""

    def __init__(self, manual: bool) -> None:
        super().__init__()
        self.model, self.losses = make_wide_model(), []
        self.automatic_optimization = not manual

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Returns the loss; with manual optimization it makes a step of each two batches, too."""
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.losses.append(loss.item())
        if not self.automatic_optimization:
            optimizer, steps = self.optimizers(), index % 2 == 1
            with optimizer.toggle_model(sync_grad=steps):
                self.manual_backward(loss / 2)
            if steps:
                self.clip_gradients(optimizer, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
                optimizer.step()
                optimizer.zero_grad()
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        """Compares the models of the ranks."""
        require_equal(self.model)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def fit(case: str, epochs: int, local: str | None, manual: bool, checkpoint: str | None = None) -> tuple[Module, str]:
    """Trains; returns the module and the path of the checkpoint."""
    choices = {"compression": "twobit:wire=gather", "local_updates": local}
    ways = {"callback": "ddp", "name": "sirtaki"}
    callbacks = [door.SirtakiMetrics(), pl.callbacks.ModelCheckpoint(folder / case, save_last=True)]
    automatic = {"accumulate_grad_batches": 2, "gradient_clip_val": 5.0}
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=ways.get(case) or door.SirtakiStrategy(**choices),
        max_epochs=epochs,
        precision="bf16-mixed",
        callbacks=callbacks + ([door.SirtakiCallback(**choices)] if case == "callback" else []),
        logger=pl.loggers.CSVLogger(folder, case),
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({} if manual else automatic),
    )
    module = Module(manual)
    data = DataLoader(batches(), batch_size=8)
    trainer.fit(module, data, DataLoader(batches(), batch_size=160), ckpt_path=checkpoint)
    require_equal(module.model)
    assert sum(module.losses[-10:]) < 6, module.losses
    return module, str(folder / case / "last.ckpt")


def main() -> None:
    for case, local, manual in (
        ("strategy", None, False),
        ("callback", LOCAL, False),
        ("manual", LOCAL, True),
        ("name", None, False),
    ):
        module, checkpoint = fit(case, 2, local, manual)
        if case != "name":  # its compression is "auto", which is exact on a fast network
            require_state(torch.load(checkpoint)["optimizer_states"][0], local is not None)
        resumed, _ = fit(case, 3, local, manual, checkpoint)
        assert len(resumed.losses) == len(module.losses) // 2, "one epoch more"
    if torch.distributed.get_rank() == 0:
        logged = next(folder.glob("strategy/version_0/metrics.csv"))
        rows = list(csv.DictReader(logged.open()))
        assert float(rows[-1]["sirtaki/wire_bytes"]) > 0, rows[-1]
        print(f"TRAINED {len(rows)} rows of metrics", flush=True)


main()
