"""accelerate() in a training function of Ray Train, which starts the ranks and makes the process group.

Each training accumulates gradients, clips them and computes in bfloat16, then goes on from its checkpoint in Ray's
storage, as a run does that Ray starts again.
"""

import tempfile
from pathlib import Path
from typing import Any

import ray.train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray_support import ray_folder


def train(settings: dict[str, Any]) -> None:
    """Trains both cases on one Ray worker, from the last checkpoint if there is one, and reports a checkpoint."""
    import torch
    from ray.train.torch import prepare_data_loader, prepare_model
    from support import batches, make_wide_model, require_equal, require_state, train_pairs
    from torch.utils.data import DataLoader

    import sirtaki
    from sirtaki.torch.ddp import accelerate

    loader = prepare_data_loader(DataLoader(batches(), batch_size=8, shuffle=True))

    def trained(local: str | None, state: dict[str, Any] | None) -> tuple[dict[str, Any], list[float]]:
        model = prepare_model(make_wide_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        handle = accelerate(model, optimizer, compression="twobit:wire=gather", local_updates=local)
        if state is not None:
            model.module.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        losses = []
        for epoch in range(settings["epochs"]):
            loader.sampler.set_epoch(epoch)
            losses += train_pairs(model, optimizer, loader, model.no_sync)
        handle.prepare_checkpoint()
        require_equal(model)
        require_state(optimizer.state_dict(), local is not None)
        assert local is not None or handle.compression_report()
        return {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, losses

    found = ray.train.get_checkpoint()
    with tempfile.TemporaryDirectory() as folder:
        states = {} if found is None else torch.load(Path(found.to_directory(folder), "states.pt"))
    numbers: dict[str, Any] = {"resumed": found is not None}
    for case, local in (("compression", None), ("local", "fixed:steps=4,delay=1,warmup=2")):
        states[case], losses = trained(local, states.get(case))
        numbers |= {f"{case} first": losses[0], f"{case} last": sum(losses[-10:]) / 10}
    with tempfile.TemporaryDirectory() as folder:
        torch.save(states, Path(folder, "states.pt"))
        checkpoint = Checkpoint.from_directory(folder) if sirtaki.rank() == 0 else None
        ray.train.report({**numbers, **sirtaki.metrics("sirtaki/")}, checkpoint=checkpoint)


def fit(folder: str, epochs: int) -> dict[str, Any]:
    """Trains, from the last checkpoint if there is one; returns the numbers that rank 0 reported."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(name="door", storage_path=f"{folder}/results"),
    )
    return trainer.fit().metrics


with ray_folder() as folder:
    first, later = fit(folder, 2), fit(folder, 1)
assert [first["resumed"], later["resumed"]] == [False, True], (first, later)
assert max(later["compression last"], later["local last"]) < 0.6, (first, later)
assert first["sirtaki/wire_bytes"] > 0, first
print(f"TRAINED loss {first['local first']:.3f} to {later['local last']:.3f}", flush=True)
