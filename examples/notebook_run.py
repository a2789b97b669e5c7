"""Runs a Python function on several ranks, as in a notebook: no script, no command line.

python examples/notebook_run.py
sirtakirun -np 4 python examples/notebook_run.py     # the same function, started by the launcher
"""

from __future__ import annotations

import argparse
import os


def estimate_pi(points: int) -> float:
    """Estimates pi with `points` darts per rank; returns the mean of the estimates on every rank."""
    import torch

    import sirtaki.torch as hvd

    hvd.init()
    darts = torch.rand(points, 2, generator=torch.Generator().manual_seed(hvd.rank()))
    inside = (darts.square().sum(dim=1) <= 1.0).double().mean() * 4
    estimate = hvd.allreduce(inside, name="pi").item()
    hvd.shutdown()
    return estimate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks to start")
    parser.add_argument("--points", type=int, default=200_000, help="darts per rank")
    args = parser.parse_args()
    rank = os.environ.get("SIRTAKI_JOB_RANK")
    if rank is not None:
        estimate = estimate_pi(args.points)
        if rank == "0":
            print(f"pi is about {estimate:.4f}")
        return

    import sirtaki

    results = sirtaki.run(estimate_pi, args=(args.points,), np=args.np)
    print(f"pi is about {results[0]:.4f}; {len(results)} ranks agree: {len(set(results)) == 1}")


if __name__ == "__main__":
    main()
