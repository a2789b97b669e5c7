"""The command `sirtaki estimate`: arguments, table and JSON."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sirtaki import errors
from sirtaki._estimate import conditions, methods, tensors
from sirtaki._estimate.conditions import PAYLOAD_PART, Compute, Conditions
from sirtaki.compression import OPTIMIZERS

_HELP = """\
Predicts a training step under each method, by the model with which `--compression auto` chooses. Nothing is trained.

The model is one of
  MODEL.py           a program that defines `model`, or a function `model()`, of torch. With `example_input` (a tensor,
                     a tuple or a dict of arguments) the step is timed; a function `loss(output)` ends the forward pass
                     if the output is no tensor
  FILE.safetensors   a checkpoint; FILE.pt, FILE.pth and FILE.bin hold a state dict, or a dict with one in it
  --parameters 25M   a size without shapes

Examples:
  sirtaki estimate model.py --bandwidth 100Mbit --latency 0.3ms --ranks 4 --optimizer adamw
  sirtaki estimate model.safetensors --bandwidth 1Gbit --ranks 8 --compute 250ms
  sirtaki estimate --parameters 25M --bandwidth 20Mbit --compute 40ms --json

docs/estimate.md explains the figures.
"""


def add_to(commands: argparse._SubParsersAction) -> None:
    """Adds the command to the program `sirtaki`."""
    parser = commands.add_parser(
        "estimate",
        help="predict a step under each method on a link",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, nargs="?", metavar="MODEL", help="program or checkpoint, see above")
    parser.add_argument("--parameters", type=conditions.count, metavar="N", help="size of the model, in place of MODEL")
    rate = "rate of the link of one rank in one direction: 100Mbit, 1Gbit"
    parser.add_argument("--bandwidth", type=conditions.bandwidth, required=True, metavar="RATE", help=rate)
    latency = "time of one message (default: 0.2ms)"
    parser.add_argument("--latency", type=conditions.duration, default=2e-4, metavar="TIME", help=latency)
    ranks = "hosts, one rank each (default: 2)"
    parser.add_argument("--ranks", type=conditions.ranks, default=2, metavar="P", help=ranks)
    compute = "a step without communication: forward, backward, optimizer"
    parser.add_argument("--compute", type=conditions.duration, metavar="TIME", help=compute)
    kinds = "of the training; limits what `auto` may choose (default: sgd)"
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd", help=kinds)
    parser.add_argument("--json", action="store_true", help="print an object for programs")
    parser.set_defaults(run_command=run)


def run(arguments: argparse.Namespace) -> None:
    """Prints the estimate. Raises InvalidArgumentError for arguments that do not fit together."""
    model, compute = _model_of(arguments)
    kind, moments = OPTIMIZERS[arguments.optimizer]
    at = Conditions(arguments.bandwidth, arguments.latency, arguments.ranks, compute, kind, moments)
    found = methods.estimates(model, at)
    print(_json(model, at, found) if arguments.json else page(model, at, found))


def page(model: tensors.Model, at: Conditions, found: Sequence[methods.Estimate]) -> str:
    """Returns the table for people."""
    mbit = at.bytes_per_second * 8 / 1e6
    lines = [
        f"Model    {model.found}",
        f"Step     {_time(at.compute.seconds)} without communication, {at.ranks} ranks",
        f"Link     {mbit / PAYLOAD_PART:,.0f} Mbit/s ({mbit:,.1f} of payload), {_time(at.latency)}",
        "",
        f"{'method':<14} {'step':>10} {'waits':>10} {'sent':>10} {'speed-up':>9}  "
        f"{'option of sirtakirun':<36} settings",
    ]
    lines += [
        f"{row.method:<14} {_time(row.seconds):>10} {_time(row.exposed):>10} {row.sent_bytes / 1e6:>7.3g} MB "
        f"{row.speedup:>8.2f}x  {row.option:<36} {row.how}".rstrip()
        for row in found
    ]
    return "\n".join([*lines, "", _advice(found)])


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _advice(found: Sequence[methods.Estimate]) -> str:
    chosen = methods.best(found)
    if chosen.method == methods.DENSE:
        return "The link is fast enough: no setting that limits its loss shortens a step by a tenth."
    return f"Take `{chosen.option}`: {chosen.speedup:.1f}x of the dense step."


def _json(model: tensors.Model, at: Conditions, found: Sequence[methods.Estimate]) -> str:
    chosen = methods.best(found)
    return json.dumps(
        {
            "model": {"found": model.found, "parameters": model.parameters, "tensors": len(model.names)},
            "link": {"payload_bytes_per_second": at.bytes_per_second, "latency_seconds": at.latency},
            "ranks": at.ranks,
            "compute_seconds": at.compute.seconds,
            "methods": [asdict(row) for row in found],
            "best": chosen.option,
        },
        indent=1,
    )


def _model_of(arguments: argparse.Namespace) -> tuple[tensors.Model, Compute]:
    path, compute = arguments.model, arguments.compute
    if (path is None) == (arguments.parameters is None):
        raise errors.InvalidArgumentError("give either a MODEL or --parameters, as `--parameters 25M`")
    measured: Compute | None = None
    if path is None:
        model = tensors.of_count(arguments.parameters)
    elif path.suffix == ".safetensors":
        model = tensors.of_safetensors(path)
    else:
        # torch takes a second to import.
        files = importlib.import_module("sirtaki.torch._model_file")
        model, measured = files.read(path, measure=compute is None)
    if compute is not None:
        return model, conditions.of_step(compute)
    if measured is None:
        needs = ", or an `example_input` in the program" if path is not None and path.suffix == ".py" else ""
        raise errors.InvalidArgumentError(f"say how long a step takes without communication: `--compute 40ms`{needs}")
    return model, measured
