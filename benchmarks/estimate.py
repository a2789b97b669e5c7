"""Steps that `sirtaki estimate` predicts, against measured ones, by net, link and method.

    python -m benchmarks.estimate [--quick] [--nets 20,100,1000] [--tasks cnn_sgd,transformer_adamw,perceptron_sgd]
        [--resume]

Methods: dense gradients, `--compression auto`, `--local-updates auto`. The estimate is for ranks with processors of
their own on a link of one rate, so compute is a wait (benchmarks/training/replayed.py), and the shaped link passes only
a millisecond of its rate at once. It gets the rate of the link, the default latency of the command, the times of
gradients, and as `--compute` the step of as many processes that send nothing, which is measured in the same processes
before each method. Steps are timed after the warm-up of a method, as the estimate has it, in blocks one behind the
other. Rows of bytes have the predicted ones beside them, so that a wrong time can be told from another plan.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.common.contest import TaskCase
from benchmarks.common.group import Group
from benchmarks.common.rig import SMALL_BURST_MS, Options, finish, network, parse, run, say
from benchmarks.netns import INTERFACE, PAYLOAD_SHARE
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import estimate, exactly, median
from benchmarks.training.trainings import TRAINING_SECONDS

NETS, RANKS = ("20", "100", "1000"), (2,)
#: Net and optimizer -> batch of a rank, learning rate, and seconds of compute, about those of one processor.
TASKS = {
    "cnn_sgd": {"net": "cnn", "optimizer": "sgd", "batch": 32, "lr": 0.05, "replayed": 0.02},
    "transformer_adamw": {"net": "transformer", "optimizer": "adamw", "batch": 8, "lr": 0.008, "replayed": 0.04},
    "perceptron_sgd": {"net": "perceptron", "optimizer": "sgd", "batch": 32, "lr": 0.05, "replayed": 0.004},
}
ALONE = "alone"
DENSE, AUTO, LOCAL = "dense", "auto", "local updates"


@dataclass(frozen=True)
class Method:
    """Arguments of DistributedOptimizer, steps of the warm-up, and steps of a timed block."""

    how: Mapping[str, Any]
    warm: int
    block: int


METHODS = {
    DENSE: Method({"compression": "none"}, 4, 4),
    AUTO: Method({"compression": "auto"}, 96, 8),
    LOCAL: Method({"local_updates": {"interval": "auto"}}, 128, 32),
}
BLOCKS, ALONE_BLOCKS, ALONE_STEPS = 6, 4, 10
QUICK_WARM, QUICK_BLOCKS = 6, 2
#: Largest distance of the prediction from the measured step, as a share of that.
ERROR = 0.15
#: Default of `--latency`.
LATENCY = 2e-4


def recipe_of(task: str, how: Mapping[str, Any]) -> dict[str, Any]:
    """Recipe of the training, as benchmarks/training/learning.py reads it; its learning rate is nearly constant."""
    return {**TASKS[task], "momentum": 0.9, "seed": 1, "steps": 100_000, "how": dict(how)}


def measure(options: Options, case: TaskCase) -> dict[str, Any]:
    """Measures steps: their seconds by method, those that send nothing included, their bytes, and times of gradients.

    Bytes are those of the rank that sends most, at its network interface.
    """
    found: dict[str, list[float]] = {ALONE: []}
    sent: dict[str, float] = {}
    blocks = QUICK_BLOCKS if options.quick else BLOCKS
    with (
        network(case.net, case.size, strict=not options.quick, burst_ms=SMALL_BURST_MS) as net,
        Group(case.size, ["sirtaki", ALONE], net=net) as group,
    ):
        group.call("learn_prepare", system=ALONE, name=ALONE, recipe=recipe_of(case.task, {}))
        _run(group, ALONE, ALONE_STEPS)
        ready = group.call("learn_ready", name=ALONE)[0]
        for name, method in METHODS.items():
            found[ALONE] += [_run(group, ALONE, ALONE_STEPS) for _ in range(ALONE_BLOCKS)]
            recipe = {**recipe_of(case.task, method.how), "interface": INTERFACE}
            group.call("learn_prepare", system="sirtaki", name=name, recipe=recipe)
            _run(group, name, QUICK_WARM if options.quick else method.warm)
            found[name] = [_run(group, name, method.block) for _ in range(blocks)]
            records = group.call("learn_watched", name=name)
            sent[name] = max(fmean(one["sent"][-blocks * method.block :]) for one in records)
            group.call("learn_drop", names=[name])
    return {"measured": found, "sent": sent, "ready": ready}


def _run(group: Group, name: str, steps: int) -> float:
    return max(group.call("learn_run", timeout=TRAINING_SECONDS, name=name, steps=steps))


def predict(case: TaskCase, compute: float, ready: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Returns seconds and bytes of a step, and the decision, by method.

    `compute`: seconds of a step that sends nothing; `ready`: those from its first gradient to that of each parameter.
    """
    from benchmarks.training.nets import make_model
    from sirtaki._estimate import conditions, methods, tensors
    from sirtaki.compression import OPTIMIZERS

    task = TASKS[case.task]
    rows = {name: (tuple(p.shape), "float32") for name, p in make_model(str(task["net"])).named_parameters()}
    kind, moments = OPTIMIZERS[str(task["optimizer"])]
    rate = conditions.bandwidth(f"{case.net}Mbit")
    step = conditions.Compute(compute - max(ready), max(ready), tuple(ready))
    at = conditions.Conditions(rate, LATENCY, case.size, step, kind, moments)
    found = methods.estimates(tensors.of_rows(case.task, rows), at)
    return {
        row.method: {"seconds": row.seconds, "sent": row.sent_bytes, "how": row.how}
        for row in found
        if row.method in METHODS
    }


def rows_of(case: TaskCase, kept: Mapping[str, Any]) -> list[Row]:
    """Rows of measured and predicted steps."""
    measured, predicted = kept["measured"], kept["predicted"]
    alone = median(measured[ALONE])
    rows = [make_row("step_seconds", {**case.params, "method": ALONE}, estimate(measured[ALONE]), "s", "lower")]
    for name in METHODS:
        samples, said = measured[name], predicted[name]["seconds"]
        params = {**case.params, "method": name}
        rows.append(make_row("step_seconds", params, estimate(samples), "s", "lower", bound=alone))
        ratio = estimate([said / one for one in samples])
        how = {**params, "predicted": round(said, 6), "how": predicted[name]["how"]}
        rows.append(make_row("predicted_over_measured", how, ratio, "ratio", "higher", baseline=("measured", 1.0)))
        sent = {**params, "predicted": round(predicted[name]["sent"] / PAYLOAD_SHARE)}
        rows.append(make_row("sent_bytes", sent, exactly(kept["sent"][name]), "bytes", "lower"))
        error = exactly(abs(said / median(samples) - 1))
        rows.append(make_row("error", params, error, "share", "lower", target=ERROR))
    return rows


def share_row(rows: Sequence[Row]) -> Row:
    """Returns the row of the share of predictions that are near enough."""
    errors = [row for row in rows if row.metric == "error"]
    share = exactly(sum(row.met is True for row in errors) / len(errors))
    return make_row("within_15_percent", {"predictions": len(errors)}, share, "share", "higher", target=1.0)


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    options, store = parse("estimate", __doc__ or "", NETS, RANKS, (), tasks=tuple(TASKS))
    rows: list[Row] = []
    nets = _links(options)
    cases = [TaskCase(net, size, task) for task in options.more["tasks"] for net in nets for size in options.ranks]
    for case in cases[: 1 if options.quick else None]:
        if store.samples(case.key) is None:
            _keep(options, store, case)
        rows += rows_of(case, store.samples(case.key))
    return finish(store, [*rows, share_row(rows)] if rows else [])


def _keep(options: Options, store: Store, case: TaskCase) -> None:
    kept = measure(options, case)
    measured = kept["measured"]
    predicted = predict(case, median(measured[ALONE]), kept["ready"])
    store.keep(case.key, {**kept, "predicted": predicted})
    parts = [f"{name} {predicted[name]['seconds'] / median(measured[name]):.2f}" for name in METHODS]
    say(f"{case.key}: predicted over measured: {', '.join(parts)}")


def _links(options: Options) -> tuple[str, ...]:
    """Returns the links; for a quick run with the default choice the one in the middle."""
    return ("100",) if options.quick and "100" in options.nets else options.nets


if __name__ == "__main__":
    sys.exit(run(main))
