"""Lightning over Sirtaki: DDPStrategy names the backend. Runs under torchrun or sirtakirun; prints the result."""

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from support import batches, check, make_model
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    """A model and its loss, as a Lightning module."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Returns the loss of a batch, and logs it through Lightning's own collectives."""
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.2)


module = Module()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend="sirtaki"),
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, DataLoader(batches(), batch_size=16, shuffle=True))
check(module.model, module.losses)
