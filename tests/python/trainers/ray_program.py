"""Ray Train over Sirtaki: TorchConfig names the backend. Starts its ranks itself."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def train() -> None:
    """What each rank does."""
    import ray.train
    import ray.train.torch
    import torch
    from support import batches, check, make_model
    from torch.utils.data import DataLoader

    model = ray.train.torch.prepare_model(make_model())
    loader = ray.train.torch.prepare_data_loader(DataLoader(batches(), batch_size=16, shuffle=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for _ in range(3):
        for inputs, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    ray.train.report({"result": check(model.module, losses)})


def main() -> None:
    """Runs two ranks on this machine."""
    import ray
    import ray.train.torch
    from ray.train import RunConfig, ScalingConfig

    paths = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=True, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    trainer = ray.train.torch.TorchTrainer(
        train,
        torch_config=ray.train.torch.TorchConfig(backend="sirtaki"),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=sys.argv[1]),
    )
    print(trainer.fit().metrics["result"], flush=True)


if __name__ == "__main__":
    main()
