"""A training program written for Horovod, which Sirtaki runs unchanged.

sirtakirun -np 4 --horovod python examples/horovod_style.py

Fits a small network to a function of two variables.
"""

from __future__ import annotations

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F


def wanted(points: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * points[:, :1]) * points[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description="A network for a function of two variables")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fp16-allreduce", action="store_true")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(1 + hvd.rank())
    torch.set_num_threads(1)

    model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression, op=hvd.Average
    )

    for step in range(1, args.steps + 1):
        points = torch.rand(64, 2) * 2 - 1
        optimizer.zero_grad()
        loss = F.mse_loss(model(points), wanted(points))
        loss.backward()
        # Horovod requires synchronize() before gradients are read between backward() and step().
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        if step % 100 == 0 or step == args.steps:
            mean = hvd.allreduce(loss.detach(), name="loss")
            if hvd.rank() == 0:
                print(f"step {step}: loss {mean.item():.4f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
