"""Ray Train over Sirtaki: TorchConfig names the backend. Ray starts the ranks; prints the result of the training."""

import sys
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray_support import ray_folder


def train(settings: dict[str, Any]) -> None:
    """Trains on one Ray worker; rank 0 writes the result to a file."""
    import torch
    from ray.train.torch import prepare_data_loader, prepare_model
    from support import batches, check, make_model
    from torch.utils.data import DataLoader

    model = prepare_model(make_model())
    loader = prepare_data_loader(DataLoader(batches(), batch_size=16, shuffle=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"])
    losses = []
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    text = check(model.module, losses)
    if ray.train.get_context().get_world_rank() == 0:
        Path(settings["told"]).write_text(text)


told = Path(sys.argv[1], "told")
with ray_folder() as folder:
    trainer = TorchTrainer(
        train,
        train_loop_config={"lr": 0.2, "told": str(told)},
        torch_config=TorchConfig(backend="sirtaki"),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(name="sirtaki", storage_path=f"{folder}/results"),
    )
    trainer.fit()
print(told.read_text(), flush=True)
