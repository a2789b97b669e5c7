"""Fashion-MNIST on two ranks that share a GPU, with several methods of averaging, against the CPU and torch DDP.

    python -m benchmarks.gpu.training [--quick] [--device cpu]

Started by benchmarks/gpu/run.sh. Every way trains the net of examples/pytorch_mnist.py on the same batches from the
same weights, one training for each seed. Steps a second are those of blocks of steps, without the first block; accuracy
is that of the model of rank 0 on the test images, against the same seed on the CPU. SIRTAKI_DEVICE_DATA selects the
transport of the tensors; if the variable is not set, plain gradients use host memory and NCCL as two ways.
`--device cpu` is to try this program without a GPU: its figures have no meaning.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import sirtaki
from benchmarks.common.rig import say
from benchmarks.gpu.trained import CPU, DDP, POWERSGD, Length, Way, rank_main
from benchmarks.results import RESULTS, Row, Store, make_row
from benchmarks.statistics import estimate, mean_estimate, paired_ratio

RANKS = 2
VARIABLE = "SIRTAKI_DEVICE_DATA"
#: Environment variable of the option device.codecs.
CODECS = "SIRTAKI_DEVICE_CODECS"
#: Points of accuracy that a way may lose against the CPU.
ACCURACY_COST = 0.5

FULL = Length(seeds=(1, 2, 3), epochs=2, steps=0, block=50)
QUICK = Length(seeds=(1,), epochs=1, steps=60, block=20)


def ways(environment: Mapping[str, str]) -> list[Way]:
    """Returns the ways: the CPU first, then torch, then Sirtaki."""
    plain = [Way(f"none, {data}", environment={VARIABLE: data}) for data in ("host", "nccl")]
    return [
        Way(CPU),
        Way(DDP),
        Way(POWERSGD),
        *([Way("none")] if VARIABLE in environment else plain),
        Way("auto", {"compression": "auto"}),
        Way("group_topk", {"compression": "group_topk:wire=gather"}),
        Way("group_topk, CPU", {"compression": "group_topk:wire=gather"}, {CODECS: "host"}),
        Way("local updates", {"local_updates": 4}),
    ]


class DifferenceError(Exception):
    """Ranks have ended with different models."""


def run_way(way: Way, length: Length, kind: str) -> list[Any]:
    """Returns the trainings of rank 0 by seed; raises DifferenceError if ranks end with different models."""
    with tempfile.TemporaryDirectory(prefix="sirtaki-ddp-") as folder:
        arguments = (way, length, "cpu" if way.name == CPU else kind, str(Path(folder) / "store"))
        ranks = sirtaki.run(rank_main, arguments, np=RANKS, env=dict(way.environment), timeout=300)
    for number, seed in enumerate(length.seeds):
        if len({rank[number]["digest"] for rank in ranks}) != 1:
            raise DifferenceError(f"seed {seed}: the ranks end with different models")
    return list(ranks[0])


def rows_of(
    found: Mapping[str, Sequence[Mapping[str, Any]]], block: int, device: str, data: str | None = None
) -> list[Row]:
    """Rows of steps a second and accuracy by way, both against the CPU, the rate also against DDP, if these have run.

    `data`: transport of tensors that the user has set; None: the default of the package.
    """
    rates = {name: [block / s for one in trainings for s in one["blocks"]] for name, trainings in found.items()}
    accuracies = {name: [one["accuracy"] for one in trainings] for name, trainings in found.items()}
    rows = []
    for name in found:
        params = {"way": name, "ranks": RANKS, "device": "CPU" if name == CPU else device, "data": data}
        rows.append(make_row("steps_per_second", params, estimate(rates[name]), "1/s", "higher"))
        for other in (CPU, DDP, POWERSGD):
            if name not in (CPU, DDP, POWERSGD) and other in found:
                ratio = paired_ratio(rates[name], rates[other])
                metric = "over_powersgd" if other == POWERSGD else f"over_{other}"
                rows.append(make_row(metric, params, ratio, "ratio", "higher", baseline=(other, 1.0)))
        rows.append(make_row("accuracy", params, mean_estimate(accuracies[name]), "%", "higher"))
        if name != CPU and CPU in found:
            cost = mean_estimate([a - b for a, b in zip(accuracies[CPU], accuracies[name], strict=True)])
            rows.append(make_row("accuracy_cost", params, cost, "points", "lower", target=ACCURACY_COST))
    return rows


def main() -> int:
    """Runs all ways in sequence; returns 0, whatever the verdicts, 1 if a way has failed, 2 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.training", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, few steps")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for result files")
    arguments = parser.parse_args()
    length, kind = QUICK if arguments.quick else FULL, arguments.device
    if kind == "cuda" and not torch.cuda.is_available():
        print("training: no GPU: torch finds no CUDA device", file=sys.stderr)
        return 2
    device = torch.cuda.get_device_name() if kind == "cuda" else "CPU"
    command = "benchmarks/gpu/run.sh" + (" --quick" if arguments.quick else "")
    store = Store("gpu_training", command, folder=arguments.results)
    found: dict[str, list[Any]] = {}
    failed = False
    for way in ways(os.environ):
        say(f"training: {way.name}")
        try:
            found[way.name] = run_way(way, length, kind)
        except (sirtaki.RankFailedError, TimeoutError, DifferenceError) as error:
            # The other ways are useful all the same.
            failed = True
            say(f"{way.name} failed: {error}")
        else:
            # Results are written at once, because the next way may hang until the run is ended.
            store.finish(rows_of(found, length.block, device, os.environ.get(VARIABLE)))
    if found:
        say(f"written: {store.path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
