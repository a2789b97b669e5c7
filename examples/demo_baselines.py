"""The third program of `make demo`: DDP and PowerSGD of torch on Gloo on the batches of the demo.

sirtakirun -np 4 python examples/demo_baselines.py --system ddp --meet /tmp/an-empty-folder

sirtakirun only starts the ranks; they meet through a file in the folder that --meet names, and Sirtaki sends nothing.
PowerSGD has rank 4, and makes two blocking all-reduces a step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from demo_fashion_mnist import Curve, Plain, rising
from fashion_mnist import FashionNet, load

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.baselines.torch_compressed import PowerSgdSystem
from benchmarks.common.systems import GlooSystem, Place

SYSTEMS: dict[str, tuple[type[GlooSystem], dict[str, Any]]] = {
    "ddp": (GlooSystem, {}),
    "powersgd": (PowerSgdSystem, {"rank": 4}),
}
STEPS_BETWEEN_LOOKS = 10  # at the clock: each look is one more message


class Gloo(Plain):
    """A job of several ranks that communicate through torch.distributed."""

    def __init__(self, system: str, meet: Path) -> None:
        self.rank, self.size = int(os.environ["SIRTAKI_JOB_RANK"]), int(os.environ["SIRTAKI_JOB_SIZE"])
        kind, self._how = SYSTEMS[system]
        self._system = kind()
        self._system.start(Place(self.rank, self.size, str(meet)))

    def train(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """Returns a model and an optimizer that average gradients over the ranks."""
        return self._system.train(model, optimizer, **self._how)

    def mean(self, values: list[float], name: str) -> list[float]:
        """Returns the mean over the ranks."""
        tensor = torch.tensor(values, dtype=torch.float64)
        self._system.allreduce(tensor, name)
        return (tensor / self.size).tolist()

    def close(self) -> None:
        """Leaves the process group."""
        self._system.stop()


def train(world: Gloo, args: argparse.Namespace) -> Curve:
    """Trains until the time is over; returns the losses of this rank."""
    torch.manual_seed(args.seed)
    network = FashionNet()
    model, optimizer = world.train(network, torch.optim.SGD(network.parameters(), lr=args.lr, momentum=0.9))
    data, curve, schedule = load(train=True), Curve(), rising(optimizer)
    epochs = (data.batches(args.global_batch // world.size, n, world.rank, world.size) for n in itertools.count())
    world.mean([0.0], "begin")
    curve.resume()
    for step, (images, labels) in enumerate(itertools.chain.from_iterable(epochs), 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        curve.add(loss.item())
        # All ranks must make the same number of steps: the training ends when the time is over on all of them.
        if step % STEPS_BETWEEN_LOOKS == 0 and world.mean([float(curve.seconds >= args.seconds)], "over") == [1.0]:
            break
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description="baselines of the demo on Gloo")
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--meet", type=Path, required=True, help="folder shared by the ranks, empty at the start")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--global-batch", type=int, default=256, help="images per step, all ranks together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0: torch decides")
    parser.add_argument("--report", type=Path, help="rank 0 writes its figures there as JSON")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    world = Gloo(args.system, args.meet)
    if args.global_batch % world.size:
        raise SystemExit(f"--global-batch {args.global_batch} does not divide among {world.size} ranks")
    curve = train(world, args)
    points = curve.points(world)
    if world.rank == 0:
        seconds, loss, _ = points[-1]
        if args.report is not None:
            args.report.write_text(json.dumps({"steps": curve.steps, "curve": points}))
        else:
            print(f"{args.system}: {curve.steps} steps in {seconds:.1f} s, loss {loss:.4f}")
    world.close()


if __name__ == "__main__":
    main()
